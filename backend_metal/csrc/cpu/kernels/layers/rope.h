// Rotary position embedding (Su et al., arXiv:2104.09864): dimension i turns with dimension
// i + half, as in GPT-NeoX.
#pragma once

#include "cpu/kernels/simd.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// `angles`: [2, half], cosines and then sines, of one position.
inline void find_angles(float position, const float* frequencies, int half, float* angles) {
  for (int i = 0; i < half; i++) {
    float angle = position * frequencies[i];
    angles[i] = __builtin_cosf(angle);
    angles[half + i] = __builtin_sinf(angle);
  }
}

// x, out: [heads, head_dim] of one token, whose `angles` those are. Dimensions from 2 * half on are
// copied. Products and sums are rounded one by one, as MLX does.
inline void rotate(
    const float* x, float* out, const float* angles, int half, int heads, int head_dim) {
  const float *cosines = angles, *sines = angles + half;
  for (int head = 0; head < heads; head++, x += head_dim, out += head_dim) {
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      Floats first = load(x + i), second = load(x + half + i);
      Floats cosine = load(cosines + i), sine = load(sines + i);
      store(out + i, first * cosine - second * sine);
      store(out + half + i, first * sine + second * cosine);
    }
    for (; i < half; i++) {
      float first = x[i], second = x[half + i];
      out[i] = first * cosines[i] - second * sines[i];
      out[half + i] = first * sines[i] + second * cosines[i];
    }
    if (out != x) {
      __builtin_memcpy(out + 2 * half, x + 2 * half, (head_dim - 2 * half) * sizeof(float));
    }
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
