// What kernels of products read and write besides their results.
#pragma once

#include <mlx/backend/cuda/device.h>
#include <mlx/mlx.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Contiguous rows that may start anywhere, where copies of 16 bytes may.
mx::array aligned_rows(mx::cu::CommandEncoder& encoder, const mx::array& rows);

// Whether the array is there, a row behind another.
bool are_rows(const mx::array& in);

// A model's own array as it is, so that no step copies it: rows of a larger one are contiguous, too.
mx::array as_rows(const mx::array& in, mx::Stream stream);

} // namespace pomona::cuda
