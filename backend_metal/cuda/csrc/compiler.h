// Compiles kernels on the machine that runs them.
//
// MLX's own module for this (mlx/backend/cuda/jit_module.h) is hidden in its library.
#pragma once

#include <string>
#include <vector>

namespace pomona::cuda {

// Machine code for `architecture` ("sm_90a"). Raises std::runtime_error with the compiler's log.
std::vector<char> compile(const std::string& source, const std::string& architecture);

} // namespace pomona::cuda
