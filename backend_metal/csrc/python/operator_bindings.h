// The attention operators in Python.
#pragma once

#include <nanobind/nanobind.h>

#include "operators/primitives.h"

namespace pomona {

// Functions of `m` that build the operators' graph nodes on the device's default stream.
void bind_operators(nanobind::module_& m, mx::Device device);

} // namespace pomona
