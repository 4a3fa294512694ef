// The operators of recurrent layers in Python.
#pragma once

#include <nanobind/nanobind.h>

#include "operators/primitives.h"

namespace pomona {

// Functions of `m` that build the operators' graph nodes on the device's default stream.
void bind_recurrent(nanobind::module_& m, mx::Device device);

} // namespace pomona
