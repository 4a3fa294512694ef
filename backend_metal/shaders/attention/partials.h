// The states that the splits of a row left, [splits, partial_floats], folded in order by a
// simdgroup, of which a lane owns every 32nd pair of dimensions.
#pragma once

#include <metal_simdgroup>
#include <metal_stdlib>

#include "../common/constants.h"
#include "softmax.h"
#include "splits.h"

namespace pomona {

template <typename T, int DV>
inline void reduce_row(
    device T* out, const device float* states, int num_splits, float sink, uint lane) {
  float largest = -INFINITY;
  for (int i = lane; i < num_splits; i += kSimdWidth) {
    largest = metal::max(largest, states[i * partial_floats(DV)]);
  }
  largest = metal::simd_max(largest);
  float base = exponent_base(largest);
  float sum = 0.0f;
  for (int i = 0; i < num_splits; i++) {
    const device float* state = states + i * partial_floats(DV);
    sum += state[1] * rescale(state[0], base);
  }
  float factor = final_factor(largest, sum, sink);
  for (int dim = 2 * lane; dim < DV; dim += 2 * kSimdWidth) {
    float2 total = float2(0.0f);
    for (int i = 0; i < num_splits; i++) {
      const device float* state = states + i * partial_floats(DV);
      total += *reinterpret_cast<const device float2*>(state + 2 + dim) * rescale(state[0], base);
    }
    *reinterpret_cast<device metal::vec<T, 2>*>(out + dim) = metal::vec<T, 2>(total * factor);
  }
}

} // namespace pomona
