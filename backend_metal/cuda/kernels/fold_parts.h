// The end of a tile whose keys several teams have shared out: the states of their parts, added up by all
// threads of the block, each for pairs of columns.
#pragma once

#include "intrinsics.h"
#include "shaders/attention/softmax.h"

namespace pomona {

// What a part of the keys leaves in shared memory of up to ROWS rows.
template <int ROWS, int DV>
struct PartState {
  float outputs[ROWS][DV + 8]; // so that the rows which a warp stores are spread over the banks
  float bounds[ROWS][2]; // largest score and sum
};

// Of a row and two of its columns.
struct FoldedPair {
  float largest;
  float sum;
  float outputs[2];
};

// `state_of(part)` is what each part of KEY_PARTS has left.
template <int KEY_PARTS, typename StateOf>
inline FoldedPair fold_parts(int row, int column, StateOf state_of) {
  FoldedPair all{-INFINITY, 0.0f, {}};
#pragma unroll
  for (int part = 0; part < KEY_PARTS; part++) {
    all.largest = metal::max(all.largest, state_of(part).bounds[row][0]);
  }
  const float base = exponent_base(all.largest);
#pragma unroll
  for (int part = 0; part < KEY_PARTS; part++) {
    const auto& state = state_of(part);
    const float weight = rescale(state.bounds[row][0], base);
    all.sum += state.bounds[row][1] * weight;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      all.outputs[e] += state.outputs[row][column + e] * weight;
    }
  }
  return all;
}

} // namespace pomona
