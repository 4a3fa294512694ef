// The launch plans in Python, for tests.
#pragma once

#include <nanobind/nanobind.h>

namespace pomona {

void bind_plans(nanobind::module_& m);

} // namespace pomona
