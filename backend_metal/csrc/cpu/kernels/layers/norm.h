// RMS normalisation (Zhang and Sennrich, arXiv:1910.07467) of rows.
#pragma once

#include "cpu/kernels/simd.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// The last few elements of a row, in a vector of their own.
inline Floats load_part(const float* from, int64_t count) {
  Floats part = {};
  __builtin_memcpy(&part, from, count * sizeof(float));
  return part;
}

// in, out: [rows, dim]; `out` may be `in`. A row's result depends on nothing but the row.
inline void rms_norm(
    const float* in, const float* weight, float epsilon, float* out, int64_t rows, int64_t dim) {
  int64_t whole = dim / kLanes * kLanes, rest = dim - whole;
  for (int64_t row = 0; row < rows; row++, in += dim, out += dim) {
    constexpr int kSums = 4;
    Floats sums[kSums] = {};
    int64_t i = 0;
    for (; i + kSums * kLanes <= whole; i += kSums * kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < kSums; j++) {
        Floats x = load(in + i + j * kLanes);
        sums[j] = fma(x, x, sums[j]);
      }
    }
    for (; i < whole; i += kLanes) {
      Floats x = load(in + i);
      sums[0] = fma(x, x, sums[0]);
    }
    Floats last = load_part(in + whole, rest);
    sums[1] = fma(last, last, sums[1]);
    float mean = sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])) / dim;
    Floats factor = fill(1.0f / __builtin_sqrtf(mean + epsilon));
    for (i = 0; i < whole; i += kLanes) {
      store(out + i, load(in + i) * factor * load(weight + i));
    }
    last = last * factor * load_part(weight + whole, rest);
    __builtin_memcpy(out + whole, &last, rest * sizeof(float));
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
