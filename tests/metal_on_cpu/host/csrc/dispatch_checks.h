// What Metal would get wrong about one dispatch, or report only with its validation layer.
#pragma once

#include "dispatch.h"

namespace pomona::metal_on_cpu {

// As its signature says.
bool is_written_by(const MTL::ComputePipelineState& pipeline, int index);

// Raises std::runtime_error. `threadgroup_memory` is bytes by index.
void check_dispatch(
    const MTL::ComputePipelineState& pipeline,
    const std::map<int, Binding>& bindings,
    const std::map<int, size_t>& threadgroup_memory,
    MTL::Size grid,
    MTL::Size group);

} // namespace pomona::metal_on_cpu
