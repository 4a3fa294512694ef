// Vectors of floats as wide as a kernel's registers, without a word of any instruction set: what is
// here is inlined into functions that are compiled for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pomona::gemm {

using Index = std::ptrdiff_t;

typedef float Vector16 __attribute__((vector_size(64)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector4 __attribute__((vector_size(16)));

template <typename Vector>
inline constexpr Index width_of = sizeof(Vector) / sizeof(float);

// Unsigned integers, one for each lane of Vector.
template <typename Vector>
struct IntegersOf {
  typedef uint32_t Words __attribute__((vector_size(sizeof(Vector))));
  typedef uint16_t Halves __attribute__((vector_size(sizeof(Vector) / 2)));
};
template <typename Vector>
using WordsOf = typename IntegersOf<Vector>::Words;
template <typename Vector>
using HalvesOf = typename IntegersOf<Vector>::Halves;

template <typename V>
[[gnu::always_inline]] inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

// The first `count` bytes; zeros behind them.
template <typename V>
[[gnu::always_inline]] inline V load_part(const void* from, Index bytes) {
  V v{};
  std::memcpy(&v, from, bytes);
  return v;
}

template <typename V>
[[gnu::always_inline]] inline void store(void* to, V v) {
  std::memcpy(to, &v, sizeof(v));
}

[[gnu::always_inline]] inline Vector16 join(Vector8 first, Vector8 second) {
  return __builtin_shufflevector(
      first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

template <int... I>
struct Lanes {};

template <int N, int... I>
struct LanesUpTo : LanesUpTo<N - 1, N - 1, I...> {};

template <int... I>
struct LanesUpTo<0, I...> {
  using type = Lanes<I...>;
};

// Of a and b, `Block` lanes of each by turns out of every 2 * Block: the even blocks, or the odd ones.
// `Within` is how many lanes such a choice is made in, as the instructions have it.
template <int Block, int Within, bool Odd, typename Vector, int... I>
[[gnu::always_inline]] inline Vector interleave(Vector a, Vector b, Lanes<I...>) {
  constexpr int width = width_of<Vector>;
  // Lane I of the result: from a in the first half of each `Within`, from b in the second.
  return __builtin_shufflevector(
      a,
      b,
      (I / Within * Within + I % (Within / 2) / Block * 2 * Block + I % Block +
       (Odd ? Block : 0) + (I % Within >= Within / 2 ? width : 0))...);
}

// a0 b0 a1 b1 of each four lanes (or, High, a2 b2 a3 b3).
template <bool High, typename Vector, int... I>
[[gnu::always_inline]] inline Vector zip(Vector a, Vector b, Lanes<I...>) {
  constexpr int width = width_of<Vector>;
  return __builtin_shufflevector(
      a, b, (I / 4 * 4 + I % 4 / 2 + (High ? 2 : 0) + I % 2 * width)...);
}

// rows[i][j] becomes rows[j][i], of a square as wide as a vector.
template <typename Vector>
[[gnu::always_inline]] inline void transpose(Vector* rows) {
  constexpr int width = width_of<Vector>;
  using All = typename LanesUpTo<width>::type;
  // Squares of 4 x 4 within each four lanes: rows[4 * quad + j] holds column j of each.
  for (int quad = 0; quad < width; quad += 4) {
    Vector* r = rows + quad;
    const Vector low = zip<false>(r[0], r[1], All{}), high = zip<true>(r[0], r[1], All{});
    const Vector low2 = zip<false>(r[2], r[3], All{}), high2 = zip<true>(r[2], r[3], All{});
    r[0] = interleave<2, 4, false>(low, low2, All{});
    r[1] = interleave<2, 4, true>(low, low2, All{});
    r[2] = interleave<2, 4, false>(high, high2, All{});
    r[3] = interleave<2, 4, true>(high, high2, All{});
  }
  // Then the squares themselves.
  if constexpr (width == 8) {
    for (int j = 0; j < 4; ++j) {
      const Vector a = rows[j], b = rows[4 + j];
      rows[j] = interleave<4, 8, false>(a, b, All{});
      rows[4 + j] = interleave<4, 8, true>(a, b, All{});
    }
  } else if constexpr (width == 16) {
    for (int j = 0; j < 4; ++j) {
      const Vector a = rows[j], b = rows[4 + j], c = rows[8 + j], d = rows[12 + j];
      const Vector even = interleave<4, 16, false>(a, b, All{});
      const Vector even2 = interleave<4, 16, false>(c, d, All{});
      const Vector odd = interleave<4, 16, true>(a, b, All{});
      const Vector odd2 = interleave<4, 16, true>(c, d, All{});
      rows[j] = interleave<4, 16, false>(even, even2, All{});
      rows[4 + j] = interleave<4, 16, false>(odd, odd2, All{});
      rows[8 + j] = interleave<4, 16, true>(even, even2, All{});
      rows[12 + j] = interleave<4, 16, true>(odd, odd2, All{});
    }
  }
}

} // namespace pomona::gemm
