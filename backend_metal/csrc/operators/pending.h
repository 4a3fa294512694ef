#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <string_view>

namespace pomona {

namespace mx = mlx::core;

// Whether an array is a node of that name in a graph, which something else may be computed in place of:
// neither what a transformation of MLX's traces, nor what is computed already, which has no primitive
// any more. By name: MLX does not export each class everywhere.
inline bool is_pending(const mx::array& x, std::string_view name, mx::Stream stream) {
  return x.has_primitive() && x.status() == mx::array::unscheduled && !x.is_tracer() &&
      std::string_view(x.primitive().name()) == name && x.primitive().stream() == stream;
}

} // namespace pomona
