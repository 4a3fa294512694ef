// The operator that rotates heads in Python.
#pragma once

#include <nanobind/nanobind.h>

#include "operators/rotate_heads.h"

namespace pomona {

// A function of `m` that calls `rotate` with the device's default stream.
void bind_rotate_heads(nanobind::module_& m, mx::Device device, RotateHeadsFunction* rotate);

} // namespace pomona
