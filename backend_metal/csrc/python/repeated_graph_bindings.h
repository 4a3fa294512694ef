// Graphs that are built once, in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace pomona {

// Class `RepeatedGraph` of `m`.
void bind_repeated_graph(nanobind::module_& m);

} // namespace pomona
