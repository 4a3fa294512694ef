#pragma once

#include <nanobind/nanobind.h>

namespace pomona::cuda {

void bind_recording(nanobind::module_& m);

} // namespace pomona::cuda
