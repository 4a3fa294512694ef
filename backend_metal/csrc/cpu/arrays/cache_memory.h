// Memory for a KV cache, and for weights.
#pragma once

#include <mlx/mlx.h>

#include <vector>

namespace pomona::cpu {

// A zeroed array, on huge pages where the system has them: blocks lie all over a cache of many
// gigabytes, and finding their pages takes a third of a decode's time otherwise.
mlx::core::array zeros(mlx::core::Shape shape, mlx::core::Dtype dtype);

// Copies of `arrays`, evaluated, as parts of one array, on huge pages where the system has them: most
// matrices of a small model are no huge page large, and a core that reads them waits for pages to be
// found about as long as for memory. Each begins with a line of the cache.
std::vector<mlx::core::array> lay_together(
    const std::vector<mlx::core::array>& arrays, mlx::core::Stream stream);

} // namespace pomona::cpu
