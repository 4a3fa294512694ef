// What kernels of products read and write besides their results.
#pragma once

#include <mlx/backend/cuda/device.h>
#include <mlx/mlx.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Tiles of outputs and rows of a launch that shares the depth out among blocks, at most.
inline constexpr int kMostSplitTiles = 16'384;

// One for each such tile. Zeros, as kernels leave them. Those that use
// them are run one after another, since each is told to be their writer.
const mx::array& split_counters(mx::Stream stream, mx::cu::CommandEncoder& encoder);

// Contiguous rows that may start anywhere, where copies of 16 bytes may.
mx::array aligned_rows(mx::cu::CommandEncoder& encoder, const mx::array& rows);

// Whether the array is there, a row behind another.
bool are_rows(const mx::array& in);

// A model's own array as it is, so that no step copies it: rows of a larger one are contiguous, too.
mx::array as_rows(const mx::array& in, mx::Stream stream);

} // namespace pomona::cuda
