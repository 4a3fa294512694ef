// The shape of one attention layer, which launch plans for every device are made from.
#pragma once

namespace pomona {

struct AttentionShape {
  int num_q_heads;
  int num_kv_heads;
  int head_dim;
  int head_dim_v;
  int window; // 0: none

  int group() const {
    return num_q_heads / num_kv_heads;
  }
};

} // namespace pomona
