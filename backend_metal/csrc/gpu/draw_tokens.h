// The launches of a draw: its arrays, what they tell the kernels, and their grids.
#pragma once

#include <mlx/mlx.h>

#include "gpu/launch_plan.h"
#include "common/parameters.h"

namespace pomona {

namespace mx = mlx::core;

struct DrawArrays {
  const mx::array& logits;
  const mx::array& options;
  const mx::array& masks;
  const mx::array& counts;
  const mx::array& bias_ids;
  const mx::array& biases;
};

// Of a primitive's inputs.
DrawArrays draw_arrays(const std::vector<mx::array>& inputs);

// Raises std::invalid_argument for a vocabulary that is too large.
DrawParameters parameters_of(const DrawArrays& arrays);

struct DrawPlan {
  GpuGrid chunks; // draw_chunks. Grid: (chunks, rows, 1)
  // draw_weights, draw_slices. Grid: (slices, rows, 1); empty where no row leaves tokens out
  GpuGrid slices;
  GpuGrid rows; // draw_rows. Grid: (rows, 1, 1)
  // What kernels leave for those behind them, in words of 4 bytes.
  int best_words;
  int num_candidates; // ids
  int tally_words;
};

// Raises std::invalid_argument where there are too many candidates.
DrawPlan plan_draw(int num_rows, const DrawParameters& parameters, bool cuts);

} // namespace pomona
