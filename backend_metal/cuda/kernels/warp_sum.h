// Sums over a warp, and over a block.
#pragma once

#include "intrinsics.h"
#include "shaders/common/constants.h"

namespace pomona {

inline float warp_sum(float value) {
  for (int mask = kSimdWidth / 2; mask > 0; mask /= 2) {
    value += shuffle_xor(value, mask);
  }
  return value;
}

// Of THREADS threads, by way of as many floats of shared memory as there are warps.
template <int THREADS>
inline float block_sum(float value) {
  const int warp = thread_index() / kSimdWidth, lane = thread_index() % kSimdWidth;
  float* sums = reinterpret_cast<float*>(shared_memory());
  value = warp_sum(value);
  if (lane == 0) {
    sums[warp] = value;
  }
  sync_block();
  return warp_sum(lane < THREADS / kSimdWidth ? sums[lane] : 0.0f);
}

} // namespace pomona
