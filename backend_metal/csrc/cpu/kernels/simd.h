// Float vectors as wide as the instruction set this file is compiled for.
//
// Everything under kernels/ is compiled once for each instruction set, in a namespace of its own
// (POMONA_INSTRUCTION_SET), and uses no inline code from elsewhere: the linker keeps one copy of an
// inline function, which must not be one that only some machines can run.
#pragma once

#include <stdint.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kDotAccumulators = 16;
inline constexpr int kPanelRows = 8;
inline constexpr int kValueVectors = 4; // times up to 4 heads
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
inline constexpr int kDotAccumulators = 8;
inline constexpr int kPanelRows = 4;
inline constexpr int kValueVectors = 2;
#elif defined(__ARM_NEON)
inline constexpr int kLanes = 4;
inline constexpr int kDotAccumulators = 16;
inline constexpr int kPanelRows = 8;
inline constexpr int kValueVectors = 4;
#else
inline constexpr int kLanes = 4;
inline constexpr int kDotAccumulators = 4;
inline constexpr int kPanelRows = 4;
inline constexpr int kValueVectors = 2;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UInts __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

template <typename V>
inline V load_as(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

template <typename V>
inline void store_as(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

inline Floats load(const float* from) {
  return load_as<Floats>(from);
}

inline void store(float* to, Floats v) {
  store_as(to, v);
}

inline Floats fill(float x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (Floats)_mm256_set1_ps(x);
#elif defined(__ARM_NEON)
  return (Floats)vdupq_n_f32(x);
#else
  return Floats{x, x, x, x};
#endif
}

inline Ints fill_int(int32_t x) {
  return Ints{} + x;
}

// a * b + c, rounded once where the machine can.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

inline Floats max(Floats a, Floats b) {
  return a > b ? a : b;
}

inline Floats as_floats(Ints v) {
  return (Floats)v;
}

inline Ints as_ints(Floats v) {
  return (Ints)v;
}

// Of a comparison, whose lanes are 0 or -1: whether any is true.
inline bool any(Ints v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)v) != 0;
#elif defined(__ARM_NEON)
  return vmaxvq_u32((uint32x4_t)v) != 0;
#else
  return (v[0] | v[1] | v[2] | v[3]) != 0;
#endif
}

template <int... I>
struct Indices {};

template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};

template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

// Adds the second half of every segment of 2 * Half lanes to the first: a's results, then b's.
template <int Half, int... I>
inline Floats add_halves(Floats a, Floats b, Indices<I...>) {
  Floats first = __builtin_shufflevector(a, b, (I / Half * 2 * Half + I % Half)...);
  Floats second = __builtin_shufflevector(a, b, (I / Half * 2 * Half + I % Half + Half)...);
  return first + second;
}

// Lane i is the sum of rows[i]'s lanes; every row is added up in the same order.
template <int Half = kLanes / 2>
inline Floats row_sums(const Floats* rows) {
  Floats halves[Half];
#pragma GCC unroll 8
  for (int i = 0; i < Half; i++) {
    halves[i] =
        add_halves<Half>(rows[2 * i], rows[2 * i + 1], typename MakeIndices<kLanes>::type{});
  }
  if constexpr (Half == 1) {
    return halves[0];
  } else {
    return row_sums<Half / 2>(halves);
  }
}

// Every lane with the one `Distance` lanes on, around the end.
template <int Distance, int... I>
inline Floats rotated(Floats v, Indices<I...>) {
  return __builtin_shufflevector(v, v, (I + Distance) % kLanes...);
}

template <int Distance = kLanes / 2>
inline float largest_lane(Floats v) {
  v = max(v, rotated<Distance>(v, MakeIndices<kLanes>::type{}));
  if constexpr (Distance == 1) {
    return v[0];
  } else {
    return largest_lane<Distance / 2>(v);
  }
}

template <int Distance = kLanes / 2>
inline float sum_of_lanes(Floats v) {
  v += rotated<Distance>(v, MakeIndices<kLanes>::type{});
  if constexpr (Distance == 1) {
    return v[0];
  } else {
    return sum_of_lanes<Distance / 2>(v);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
