// exp and tanh over vectors. Coefficients from Cephes (S. Moshier, netlib.org/cephes, single/).
#pragma once

#include "cpu/kernels/simd.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

inline constexpr float kInfinity = __builtin_inff();

// Within 2 ulp; 0 below the smallest normal result, infinity above the largest, exactly 1 at 0.
inline Floats exp(Floats x) {
  const Floats lowest = fill(-87.33654f), highest = fill(88.72283f);
  Floats clamped = x < lowest ? lowest : x;
  clamped = clamped > highest ? highest : clamped;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const Floats shift = fill(12582912.0f);
  Floats shifted = fma(clamped, fill(1.44269504088896341f), shift);
  Floats power = shifted - shift;
  Floats r = fma(power, fill(-0.693359375f), clamped);
  r = fma(power, fill(2.12194440e-4f), r);
  Floats p = fill(1.9875691500e-4f);
  p = fma(p, r, fill(1.3981999507e-3f));
  p = fma(p, r, fill(8.3334519073e-3f));
  p = fma(p, r, fill(4.1665795894e-2f));
  p = fma(p, r, fill(1.6666665459e-1f));
  p = fma(p, r, fill(5.0000001201e-1f));
  p = fma(p * r, r, r) + 1.0f;
  // 2^128 is not a float: the power is applied in two halves.
  Ints exponent = as_ints(shifted) - as_ints(shift);
  Ints half = exponent >> 1;
  Floats first = as_floats((half + 127) << 23);
  Floats second = as_floats((exponent - half + 127) << 23);
  Floats result = p * first * second;
  result = x < lowest ? Floats{} : result;
  return x > highest ? fill(kInfinity) : result;
}

inline float exp(float x) {
  return exp(fill(x))[0];
}

inline Floats tanh(Floats x) {
  Floats magnitude = (Floats)(as_ints(x) & 0x7fffffff);
  Floats big = 1.0f - 2.0f / (exp(magnitude + magnitude) + 1.0f);
  big = as_floats(as_ints(big) | (as_ints(x) & fill_int(INT32_MIN)));
  Floats square = x * x;
  Floats p = fill(-5.70498872745e-3f);
  p = fma(p, square, fill(2.06390887954e-2f));
  p = fma(p, square, fill(-5.37397155531e-2f));
  p = fma(p, square, fill(1.33314422036e-1f));
  p = fma(p, square, fill(-3.33332819422e-1f));
  Floats small = fma(p * square, x, x);
  return magnitude < 0.625f ? small : big;
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
