// Encodes the dispatches of one attention launch.
#pragma once

#include <mlx/backend/metal/device.h>

#include <optional>

#include "metal/rows.h"
#include "operators/primitives.h"

namespace pomona::metal {

// This step's own keys and values, read by attention, and by scatter, which writes them to the
// caches.
struct NewTokens {
  Rows k, v;
  const mx::array& slot_mapping;
  mx::array& k_cache; // the outputs
  mx::array& v_cache;
};

struct AttentionArrays {
  Rows q;
  const std::optional<NewTokens>& new_tokens;
  const mx::array& k_cache;
  const mx::array& v_cache;
  const mx::array& block_tables;
  const mx::array& seq_lens;
  const mx::array& cu_seqlens_q;
  const mx::array* sinks;
  mx::array& out;
  mx::array& partials; // gets its size here
};

// Decode, prefill and, with new tokens, scatter, none of which waits for another; then, where rows
// have several splits, the reduction.
void encode_attention(
    mx::metal::Device& device,
    mx::metal::CommandEncoder& encoder,
    const AttentionOptions& options,
    const AttentionArrays& arrays);

void encode_scatter(
    mx::metal::Device& device, mx::metal::CommandEncoder& encoder, const NewTokens& tokens);

} // namespace pomona::metal
