#pragma once

#include <nanobind/nanobind.h>

namespace pomona::metal_on_cpu {

// The operators under the names and arguments of `_native`, on the CPU stream.
void bind_operators(nanobind::module_& m);

} // namespace pomona::metal_on_cpu
