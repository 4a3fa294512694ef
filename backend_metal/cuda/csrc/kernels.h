// Kernels, compiled when they are first used, and what they need to know of the GPU.
#pragma once

#include <mlx/backend/cuda/device.h>

#include "cuda/csrc/kernel_source.h"
#include "gpu/launch_plan.h"

namespace pomona::cuda {

namespace mx = mlx::core;

// `memory_bytes` is the most shared memory of a block that a launch asks for. Raises
// std::runtime_error where the kernel does not compile, or the GPU has less memory.
CUfunction load(
    mx::cu::Device& device, const Kernel& kernel, const Options& options, int64_t memory_bytes);

// Of the machine's GPU.
GpuLimits device_limits();

// Whether blocks can see each other's shared memory.
bool has_clusters();

// Whether a kernel may begin while the one before it still runs.
bool has_dependent_launches();

// Whether it has wgmma, which GPUs of compute capability 9.0 alone have.
bool has_warpgroup_products();

} // namespace pomona::cuda
