// By which the last of the blocks that share one piece of work knows that it is the last.
#pragma once

#include <mlx/backend/cuda/device.h>
#include <mlx/mlx.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Pieces of work of a launch that are shared out among blocks, at most.
inline constexpr int kMostSplitCounters = 16'384;

// One for each of them. Zeros, as kernels leave them. Those that use them are run one after another,
// since each is told to be their writer.
const mx::array& split_counters(mx::Stream stream, mx::cu::CommandEncoder& encoder);

} // namespace pomona::cuda
