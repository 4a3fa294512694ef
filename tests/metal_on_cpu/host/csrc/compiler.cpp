#include "compiler.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "settings.h"

namespace nb = nanobind;

namespace pomona::metal_on_cpu {

namespace {

// Never freed: Python may be gone before the process's statics are.
nb::object& python_compiler() {
  static auto* compiler = new nb::object;
  return *compiler;
}

} // namespace

void set_compiler(nb::callable compiler) {
  python_compiler() = std::move(compiler);
}

EmulatedLibrary* compile(const std::string& source) {
  std::string path;
  {
    nb::gil_scoped_acquire gil;
    if (!python_compiler().is_valid()) {
      throw std::runtime_error("no compiler has been set");
    }
    try {
      path = nb::cast<std::string>(python_compiler()(source, settings().track_loads));
    } catch (const nb::python_error& error) {
      // MLX's module could not translate this one.
      throw std::runtime_error(
          std::string("[metal::Device] Unable to build metal library from source\n") +
          error.what());
    }
  }
  return new EmulatedLibrary(path);
}

} // namespace pomona::metal_on_cpu
