// What the launch plan needs to know of this machine's GPU.
#pragma once

#include <mlx/backend/metal/device.h>

#include "gpu/launch_plan.h"

namespace pomona::metal {

GpuLimits device_limits(mlx::core::metal::Device& device);

// Cores of the GPU; 0 when the system does not tell. Asked once, and kept.
int gpu_core_count();

} // namespace pomona::metal
