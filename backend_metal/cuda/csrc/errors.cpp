#include "cuda/csrc/errors.h"

#include <stdexcept>
#include <string>

namespace pomona::cuda {

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw std::runtime_error(std::string(call) + " failed: " + (text ? text : "unknown error"));
  }
}

} // namespace pomona::cuda
