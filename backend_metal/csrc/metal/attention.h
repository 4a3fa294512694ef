// Encodes the dispatches of one attention launch.
#pragma once

#include <mlx/backend/metal/device.h>

#include "gpu/attention_arguments.h"

namespace pomona::metal {

// Decode, prefill and, with new tokens, scatter, none of which waits for another; then, where rows
// have several splits, the reduction. Gives arrays.partials its size.
void encode_attention(
    mx::metal::Device& device,
    mx::metal::CommandEncoder& encoder,
    const AttentionOptions& options,
    const AttentionArrays& arrays);

void encode_scatter(
    mx::metal::Device& device, mx::metal::CommandEncoder& encoder, const NewTokens& tokens);

} // namespace pomona::metal
