#pragma once

#include <mlx/mlx.h>
#include <nanobind/nanobind.h>

namespace pomona::cuda {

void bind_products(nanobind::module_& m, mlx::core::Device device);

} // namespace pomona::cuda
