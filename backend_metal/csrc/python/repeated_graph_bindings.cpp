#include "python/repeated_graph_bindings.h"

#include <nanobind/stl/vector.h>

#include "operators/repeated_graph.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

void bind_repeated_graph(nb::module_& m) {
  using Arrays = RepeatedGraph::Arrays;
  nb::class_<RepeatedGraph>(m, "RepeatedGraph")
      .def(
          "__init__",
          [](RepeatedGraph* self, const nb::callable& build, const Arrays& inputs) {
            const auto in_python = [&](const Arrays& arrays) {
              return nb::cast<Arrays>(build(arrays));
            };
            new (self) RepeatedGraph(in_python, inputs);
          },
          "build"_a,
          "inputs"_a)
      .def("__call__", &RepeatedGraph::operator(), "inputs"_a);
}

} // namespace pomona
