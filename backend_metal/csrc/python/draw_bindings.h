// Draws of tokens in Python.
#pragma once

#include <mlx/mlx.h>
#include <nanobind/nanobind.h>

namespace pomona {

namespace mx = mlx::core;

// A function of `m` that builds the operator's graph node on the device's default stream.
void bind_draws(nanobind::module_& m, mx::Device device);

} // namespace pomona
