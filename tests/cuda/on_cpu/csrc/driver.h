// What the stand-in for CUDA's driver has seen.
#pragma once

#include <cstddef>

namespace cuda_on_cpu {

// Blocks of the host's memory that were taken so far.
size_t num_host_allocations();

} // namespace cuda_on_cpu
