// A primitive's eval_gpu, on the CPU stream.
#pragma once

#include <memory>
#include <vector>

#include "dispatch.h"
#include "mlx/primitives.h"

namespace pomona::metal_on_cpu {

// Encodes now and runs when the stream gets there. Raises std::runtime_error for what Metal would
// get wrong silently: now where encoding shows it, else from the evaluation that waits for it.
void evaluate(
    mx::Primitive& primitive,
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs);

// What has been evaluated since the last call, oldest first, the last kMaxLaunches at most.
constexpr size_t kMaxLaunches = 1024;
std::vector<std::shared_ptr<const Launch>> take_launches();

} // namespace pomona::metal_on_cpu
