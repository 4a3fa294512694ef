// The operators that have whole rows in Python.
#pragma once

#include <mlx/mlx.h>
#include <nanobind/nanobind.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Functions of `m` that use the device's default stream.
void bind_rows(nanobind::module_& m, mx::Device device);

} // namespace pomona::cuda
