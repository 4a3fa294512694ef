// Adds the kernels of one attention launch to MLX's graph of commands.
#pragma once

#include <mlx/backend/cuda/device.h>

#include "cuda/csrc/launch_plan.h"
#include "gpu/attention_arguments.h"

namespace pomona::cuda {

LaunchPlan plan_of(const AttentionOptions& options, const AttentionArrays& arrays);

// Decode and prefill, neither of which waits for the other; then, where rows have several splits,
// the reduction, and where neither has written the new tokens scatter. In one kernel: that, and scatter.
//
// MLX orders two kernels that share an array if the first writes it, not if it reads what the other
// overwrites. So whatever reads a cache is said to write it, and all users of a cache keep the
// graph's order.
void encode_attention(
    mx::Stream stream, const AttentionOptions& options, const AttentionArrays& arrays);

void encode_scatter(mx::cu::CommandEncoder& encoder, const NewTokens& tokens);

// The rows of an input, packed where kernels could not read them: then into memory of their own,
// which MLX keeps until the GPU is done.
Rows rows_of(mx::cu::CommandEncoder& encoder, const mx::array& in);

} // namespace pomona::cuda
