// An MLX dtype as the kernels name it.
#pragma once

#include <mlx/mlx.h>

#include "cpu/launch/arguments.h"

namespace pomona {

inline cpu::ElementType element_type(mlx::core::Dtype dtype) {
  if (dtype == mlx::core::float32) {
    return cpu::ElementType::float32;
  }
  return dtype == mlx::core::float16 ? cpu::ElementType::float16 : cpu::ElementType::bfloat16;
}

} // namespace pomona
