// Folds the states that the splits of a decode's row left, the same way wherever it is done.
#pragma once

#include "attend.h"
#include "warp_sum.h"

namespace pomona {

// By one thread for a pair of dimensions: what it needs of kFewSplits is on its way at once. Other blocks may
// have written it in this launch. `stride`: floats from one split's state to the next.
template <typename T, int DV>
inline void fold_pair(
    T* out, const float* states, int stride, int num_splits, float sink, int dim) {
  float largest = -INFINITY, sum = 0.0f, totals[2] = {};
  for (int start = 0; start < num_splits; start += kFewSplits) {
    float bounds[kFewSplits][2], outputs[kFewSplits][2]; // largest and sum; of the dimensions
#pragma unroll
    for (int i = 0; i < kFewSplits; i++) {
      const float* state = states + metal::min(start + i, num_splits - 1) * stride;
      load_pair_from_blocks(bounds[i], state);
      load_pair_from_blocks(outputs[i], state + 2 + dim);
    }
    const float before = largest;
#pragma unroll
    for (int i = 0; i < kFewSplits; i++) {
      largest = metal::max(largest, bounds[i][0]);
    }
    const float base = exponent_base(largest);
    const float factor = rescale(before, base);
    sum *= factor, totals[0] *= factor, totals[1] *= factor;
#pragma unroll
    for (int i = 0; i < kFewSplits; i++) {
      const float weight = start + i < num_splits ? rescale(bounds[i][0], base) : 0.0f;
      sum += bounds[i][1] * weight;
      totals[0] += outputs[i][0] * weight;
      totals[1] += outputs[i][1] * weight;
    }
  }
  const float factor = final_factor(largest, sum, sink);
  store_pair(out + dim, totals[0] * factor, totals[1] * factor);
}

// What the warps share: of each split its weight, of each warp its largest and its sum, and its outputs.
template <int DV>
struct ReduceMemory {
  float weights[kMaxReduceSplits];
  float largest[kReduceWarps];
  float sums[kReduceWarps];
  float outputs[kReduceWarps][DV];
};

// A pair of dimensions of the splits of a warp, from the first one on.
template <int AHEAD>
inline void load_pairs(
    float (&to)[AHEAD][2], const float* states, int stride, int first, int num_splits) {
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    const int split = first + i * kReduceWarps;
    const float* from = states + metal::min(split, num_splits - 1) * stride;
    to[i][0] = from[0], to[i][1] = from[1];
  }
}

template <typename T, int DV>
inline void fold_by_block(T* out, const float* states, int stride, int num_splits, float sink) {
  constexpr int kAhead = 4;
  constexpr int kPairs = (DV / 2 + kWarpThreads - 1) / kWarpThreads;
  auto& memory = *reinterpret_cast<ReduceMemory<DV>*>(shared_memory());
  const int lane = thread_index() % kWarpThreads, warp = thread_index() / kWarpThreads;
  // Outputs of the first splits are on their way while all states are.
  float ahead[kPairs][kAhead][2];
#pragma unroll
  for (int pair = 0; pair < kPairs; pair++) {
    const int dim = metal::min(2 * (lane + pair * kWarpThreads), DV - 2);
    load_pairs(ahead[pair], states + 2 + dim, stride, warp, num_splits);
  }
  const int own = thread_index();
  const bool has_split = own < num_splits;
  const float own_largest = has_split ? states[own * stride] : -INFINITY;
  const float own_sum = has_split ? states[own * stride + 1] : 0.0f;
  float largest = own_largest;
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) {
    largest = metal::max(largest, shuffle_xor(largest, mask));
  }
  memory.largest[warp] = largest;
  sync_block();
#pragma unroll
  for (int other = 0; other < kReduceWarps; other++) {
    largest = metal::max(largest, memory.largest[other]);
  }
  const float weight = has_split ? rescale(own_largest, exponent_base(largest)) : 0.0f;
  memory.weights[own] = weight;
  memory.sums[warp] = warp_sum(own_sum * weight);
  sync_block();
#pragma unroll
  for (int pair = 0; pair < kPairs; pair++) {
    const int dim = 2 * (lane + pair * kWarpThreads);
    float totals[2] = {};
    for (int first = warp; first < num_splits; first += kAhead * kReduceWarps) {
      if (first != warp) {
        load_pairs(
            ahead[pair], states + 2 + metal::min(dim, DV - 2), stride, first, num_splits);
      }
#pragma unroll
      for (int i = 0; i < kAhead; i++) {
        const int split = first + i * kReduceWarps;
        const float of_split = split < num_splits ? memory.weights[split] : 0.0f;
        totals[0] += ahead[pair][i][0] * of_split;
        totals[1] += ahead[pair][i][1] * of_split;
      }
    }
    if (dim < DV) {
      memory.outputs[warp][dim] = totals[0];
      memory.outputs[warp][dim + 1] = totals[1];
    }
  }
  sync_block();
  float sum = 0.0f;
#pragma unroll
  for (int other = 0; other < kReduceWarps; other++) {
    sum += memory.sums[other];
  }
  const float factor = final_factor(largest, sum, sink);
  for (int dim = 2 * thread_index(); dim < DV; dim += 2 * kReduceWarps * kWarpThreads) {
    float totals[2] = {};
#pragma unroll
    for (int other = 0; other < kReduceWarps; other++) {
      totals[0] += memory.outputs[other][dim];
      totals[1] += memory.outputs[other][dim + 1];
    }
    store_pair(out + dim, totals[0] * factor, totals[1] * factor);
  }
}

} // namespace pomona
