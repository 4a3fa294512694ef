// The cache's element types, widened to float vectors and rounded back (to nearest, ties to even).
#pragma once

#include "cpu/kernels/simd.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

inline Floats load(const BFloat16* from) {
  return (Floats)(__builtin_convertvector(load_as<Halves>(from), UInts) << 16);
}

inline void store(BFloat16* to, Floats v) {
  UInts bits = (UInts)v;
  UInts rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  UInts quiet_nan = UInts{} + 0x7fc0;
  store_as(to, __builtin_convertvector(v == v ? rounded : quiet_nan, Halves));
}

#if defined(__AVX512F__)

inline Floats load(const Float16* from) {
  return (Floats)_mm512_cvtph_ps(load_as<__m256i>(from));
}

inline void store(Float16* to, Floats v) {
  store_as(to, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__AVX2__)

inline Floats load(const Float16* from) {
  return (Floats)_mm256_cvtph_ps(load_as<__m128i>(from));
}

inline void store(Float16* to, Floats v) {
  store_as(to, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__ARM_NEON)

inline Floats load(const Float16* from) {
  return (Floats)vcvt_f32_f16(load_as<float16x4_t>(from));
}

inline void store(Float16* to, Floats v) {
  store_as(to, vcvt_f16_f32((float32x4_t)v));
}

#else

inline Floats load(const Float16* from) {
  UInts half = __builtin_convertvector(load_as<Halves>(from), UInts);
  UInts magnitude = (half & 0x7fff) << 13;
  // 2^112 moves the exponent's bias from 15 to 127, and turns subnormals into normal numbers.
  Floats scaled = (Floats)magnitude * 0x1p112f;
  UInts special = magnitude | 0x7f800000;
  UInts bits = magnitude >= (0x7c00u << 13) ? special : (UInts)scaled;
  return (Floats)(bits | ((half & 0x8000) << 16));
}

inline void store(Float16* to, Floats v) {
  UInts bits = (UInts)v, sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  UInts normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 leaves the subnormal's bits, rounded, at the end of the sum.
  UInts subnormal = (UInts)((Floats)magnitude + 0.5f) - 0x3f000000u;
  UInts quiet_nan = UInts{} + 0x7e00, infinity = UInts{} + 0x7c00;
  UInts rounded = magnitude < (113u << 23) ? subnormal : normal;
  rounded = magnitude >= (143u << 23) - 0x1000 ? infinity : rounded;
  rounded = magnitude > 0x7f800000u ? quiet_nan : rounded;
  store_as(to, __builtin_convertvector(rounded | sign, Halves));
}

#endif

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
