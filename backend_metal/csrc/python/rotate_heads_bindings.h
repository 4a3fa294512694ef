// The operator that rotates heads in Python.
#pragma once

#include <mlx/mlx.h>
#include <nanobind/nanobind.h>

namespace pomona {

// A function of `m` that builds the operator's graph node on the device's default stream.
void bind_rotate_heads(nanobind::module_& m, mlx::core::Device device);

} // namespace pomona
