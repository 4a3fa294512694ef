// From a source's text to its library: a Python function, set once.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "emulated_library.h"

namespace pomona::metal_on_cpu {

// `compiler(source: str, track_loads: bool) -> str`: the path of the emulator's library.
void set_compiler(nanobind::callable compiler);

// Takes Python's lock. Raises std::runtime_error with the compiler's message.
EmulatedLibrary* compile(const std::string& source);

} // namespace pomona::metal_on_cpu
