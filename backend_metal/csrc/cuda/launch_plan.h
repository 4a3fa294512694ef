// What one attention launch does on an NVIDIA GPU.
#pragma once

#include "gpu/launch_plan.h"

namespace pomona::cuda {

// `warpgroups`: prefill is by the kernel of warpgroup_prefill.cu, with its order of blocks as grid.
GpuLaunchPlan plan_launch(
    const GpuLimits& limits,
    const AttentionShape& shape,
    const GpuBatch& batch,
    bool warpgroups);

// Of the kernel of attend_alike.cu, which has no other beside it.
GpuGrid plan_alike(const AttentionShape& shape, const GpuBatch& batch);

} // namespace pomona::cuda
