#include "gpu/recurrent_plan.h"

#include "common/constants.h"
#include "plan_arithmetic.h"

namespace pomona {

GpuGrid plan_causal_conv(int num_tokens, int channels) {
  return {
      ceil_div(channels, kConvThreads), ceil_div(num_tokens, kConvTokens), 1, kConvThreads, 0};
}

LinearAttentionPlan plan_linear_attention(
    int num_seqs, int num_v_heads, int head_dim, int head_dim_v) {
  const int threads = kStateSimdgroups * kSimdWidth;
  if (head_dim < kSimdWidth) {
    int columns = head_dim == 1 ? 1 : kNarrowColumns;
    int rows = threads * columns / head_dim;
    return {true, {ceil_div(num_v_heads * head_dim_v, rows), 1, num_seqs, threads, 0}};
  }
  int rows = kStateRows * kStateSimdgroups;
  return {false, {ceil_div(head_dim_v, rows), num_v_heads, num_seqs, threads, 0}};
}

} // namespace pomona
