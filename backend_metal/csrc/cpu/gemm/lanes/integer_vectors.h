// Vectors of 16-bit integers, whose products with each other are 32-bit ones. 256 bits wide on every
// processor: what a lane holds is part of how activations are laid out.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

typedef int16_t Shorts __attribute__((vector_size(32)));
typedef uint16_t UnsignedShorts __attribute__((vector_size(32)));
typedef int32_t Integers __attribute__((vector_size(32)));

// Lane i: a[2i] b[2i] + a[2i + 1] b[2i + 1]. By reference, since a vector that a processor has no
// register for may not be passed.
[[gnu::always_inline]] inline void
multiply_pairs(const Shorts& a, const Shorts& b, Integers* out) {
#if defined(__x86_64__) && !defined(__clang__)
  // What _mm256_madd_epi16 is made of, which is not inlined into a function for another target.
  *out = (Integers)__builtin_ia32_pmaddwd256(a, b);
#elif defined(__aarch64__)
  for (int half = 0; half < 2; ++half) {
    const int16x8_t x = load<int16x8_t>(reinterpret_cast<const int16_t*>(&a) + 8 * half);
    const int16x8_t y = load<int16x8_t>(reinterpret_cast<const int16_t*>(&b) + 8 * half);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
    store(reinterpret_cast<int32_t*>(out) + 4 * half, vpaddq_s32(low, vmull_high_s16(x, y)));
  }
#else
  // Clang takes an instruction's builtin in a function for its target alone, and makes it of this.
  const Integers x = (Integers)a, y = (Integers)b;
  *out = (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// Of eight vectors: in lane i of `low` the sum of the first four lanes of sums[i], in `high` of the
// last four.
[[gnu::always_inline]] inline void
add_lanes(const Integers* sums, Integers* low, Integers* high) {
  Integers quads[2];
  for (int i = 0; i < 2; ++i) {
    Integers pairs[2];
    for (int j = 0; j < 2; ++j) {
      const Integers a = sums[4 * i + 2 * j], b = sums[4 * i + 2 * j + 1];
      pairs[j] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
          __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    quads[i] = __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 8, 9, 4, 5, 12, 13) +
        __builtin_shufflevector(pairs[0], pairs[1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  *low = __builtin_shufflevector(quads[0], quads[1], 0, 1, 2, 3, 8, 9, 10, 11);
  *high = __builtin_shufflevector(quads[0], quads[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

} // namespace pomona::gemm
