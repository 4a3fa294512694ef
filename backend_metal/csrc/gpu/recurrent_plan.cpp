#include "gpu/recurrent_plan.h"

#include "constants.h"
#include "plan_arithmetic.h"

namespace pomona {

GpuGrid plan_causal_conv(int num_tokens, int channels) {
  return {
      ceil_div(channels, kConvThreads), ceil_div(num_tokens, kConvTokens), 1, kConvThreads, 0};
}

GpuGrid plan_linear_attention(int num_seqs, int num_v_heads, int head_dim_v) {
  return {
      ceil_div(head_dim_v, kStateRows * kStateSimdgroups),
      num_v_heads,
      num_seqs,
      kStateSimdgroups * kSimdWidth,
      0};
}

} // namespace pomona
