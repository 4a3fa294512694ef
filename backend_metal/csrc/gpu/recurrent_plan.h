// What the recurrent operators launch on a GPU, decided from shapes alone.
#pragma once

#include "gpu/launch_plan.h"

namespace pomona {

// A thread owns one channel and kConvTokens tokens.
// Grid: (channels / kConvThreads, tokens / kConvTokens, 1).
GpuGrid plan_causal_conv(int num_tokens, int channels);

// A simdgroup owns kStateRows rows of one head's state, for all tokens of a sequence.
// Grid: (rows / (kStateRows * kStateSimdgroups), v heads, sequences).
GpuGrid plan_linear_attention(int num_seqs, int num_v_heads, int head_dim_v);

} // namespace pomona
