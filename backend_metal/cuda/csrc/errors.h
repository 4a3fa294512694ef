// What CUDA's driver says of a call.
#pragma once

#include <cuda.h>

namespace pomona::cuda {

// Raises std::runtime_error unless the call has succeeded.
void check(CUresult result, const char* call);

} // namespace pomona::cuda
