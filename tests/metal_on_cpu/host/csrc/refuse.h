#pragma once

#include <stdexcept>
#include <string>

namespace pomona::metal_on_cpu {

// For what Metal would not report, or not here.
[[noreturn]] inline void refuse(const std::string& what) {
  throw std::runtime_error("metal-on-cpu: " + what);
}

} // namespace pomona::metal_on_cpu
