// Launches of the kernels that have whole rows.
#pragma once

#include "gpu/launch_plan.h"

namespace pomona::cuda {

// How a block shares a row out.
struct RowBlock {
  int threads;
  int chunks; // vectors of 16 bytes that a thread keeps; 0: more than it can
};

// As MLX's rms_norm does it, so that squares are added in the same order.
RowBlock plan_norm_block(int width, int itemsize);

// Grid: (rows, 1, 1).
GpuGrid plan_add_rms_norm(int num_rows, const RowBlock& block);

// Of a row, each with kSiluThreads vectors.
int silu_blocks_per_row(int width, int itemsize);

// Grid: (rows * blocks_per_row, 1, 1).
GpuGrid plan_silu_product(int num_rows, int blocks_per_row);

} // namespace pomona::cuda
