// Kernels as libraries for the CPU, compiled by a function of Python's.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "launch.h"

namespace cuda_on_cpu {

struct Function {
  std::string name;
  const size_t* argument_bytes;
  std::function<void(const Launch&)> run;
};

// From a kernel's text, whose options are variables, to the path of its library.
void set_compiler(std::function<std::string(const std::string&)> compiler);

} // namespace cuda_on_cpu
