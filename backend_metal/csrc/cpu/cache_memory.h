// Memory for a KV cache.
#pragma once

#include <mlx/mlx.h>

namespace pomona::cpu {

// A zeroed array, on huge pages where the system has them: blocks lie all over a cache of many
// gigabytes, and finding their pages takes a third of a decode's time otherwise.
mlx::core::array zeros(mlx::core::Shape shape, mlx::core::Dtype dtype);

} // namespace pomona::cpu
