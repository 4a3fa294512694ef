// What one attention launch does on an NVIDIA GPU.
#pragma once

#include "gpu/launch_plan.h"

namespace pomona::cuda {

GpuLaunchPlan plan_launch(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch);

} // namespace pomona::cuda
