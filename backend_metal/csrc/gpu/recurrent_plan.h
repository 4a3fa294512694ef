// What the recurrent operators launch on a GPU, decided from shapes alone.
#pragma once

#include "gpu/launch_plan.h"

namespace pomona {

// A thread owns one channel and kConvTokens tokens.
// Grid: (channels / kConvThreads, tokens / kConvTokens, 1).
GpuGrid plan_causal_conv(int num_tokens, int channels);

struct LinearAttentionPlan {
  bool is_narrow; // which kernel: narrow_linear_attention or linear_attention
  GpuGrid grid;
};

// For all tokens of a sequence, a simdgroup owns kStateRows rows of one head's state, or, of states
// with fewer columns than it has lanes, as many rows as its lanes hold at kNarrowColumns each, or at
// the only one.
// Grid: (rows / (kStateRows * kStateSimdgroups), v heads, sequences), or (rows of all heads / those of
// kStateSimdgroups, 1, sequences).
LinearAttentionPlan plan_linear_attention(
    int num_seqs, int num_v_heads, int head_dim, int head_dim_v);

} // namespace pomona
