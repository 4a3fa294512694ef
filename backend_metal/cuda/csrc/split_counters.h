// By which blocks of a launch know what the others have done: the last of those that share one piece of work
// that it is the last, and one that is done with a piece which one is next.
#pragma once

#include <mlx/backend/cuda/device.h>
#include <mlx/mlx.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Pieces of work of a launch that are shared out among blocks, at most.
inline constexpr int kMostSplitCounters = 16'384;

// Behind them, of a prefill by warpgroups: how often blocks have asked for a piece of work.
inline constexpr int kWorkCounter = kMostSplitCounters;

// Zeros, as kernels leave them. Those that use them are run one after another,
// since each is told to be their writer.
const mx::array& split_counters(mx::Stream stream, mx::cu::CommandEncoder& encoder);

} // namespace pomona::cuda
