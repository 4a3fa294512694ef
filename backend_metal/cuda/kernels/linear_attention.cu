// Linear attention with decay over recurrent state; shaders/recurrent/linear_attention.metal says what it
// computes, and this is the same with warps for simdgroups.
#include <metal_stdlib>

#include "recurrent_buffers.h"
#include "rounding.h"
#include "shaders/common/constants.h"
#include "shaders/common/parameters.h"

namespace pomona {

inline float sum_of_lanes(float value) {
  for (int mask = kSimdWidth / 2; mask > 0; mask /= 2) {
    value += shuffle_xor(value, mask);
  }
  return value;
}

// Grid: (rows / (kStateRows * kStateSimdgroups), v heads, sequences).
template <typename T, int D>
inline void linear_attention(
    const LinearAttentionParameters& p, const LinearAttentionBuffers& b) {
  constexpr int columns = D / kSimdWidth;
  const int lane = thread_index() % kSimdWidth;
  const int warp = block_position().x * kStateSimdgroups + thread_index() / kSimdWidth;
  const int first_row = warp * kStateRows;
  const int num_rows = metal::min(int(kStateRows), p.head_dim_v - first_row);
  if (num_rows <= 0) {
    return;
  }
  const int head = block_position().y, seq = block_position().z;
  const int read = b.read_slots[seq];
  const int64_t head_rows = int64_t(head) * p.head_dim_v + first_row;
  const int64_t slot_rows = int64_t(p.num_v_heads) * p.head_dim_v;
  const float* from = b.states + (read * slot_rows + head_rows) * D + lane;
  float* to = b.states + (b.write_slots[seq] * slot_rows + head_rows) * D + lane;

  float state[kStateRows][columns];
#pragma unroll
  for (int r = 0; r < kStateRows; r++) {
#pragma unroll
    for (int i = 0; i < columns; i++) {
      state[r][i] = read >= 0 && r < num_rows ? from[r * D + i * kSimdWidth] : 0.0f;
    }
  }
  const int last = b.cu_seqlens_q[seq + 1];
  for (int64_t token = b.cu_seqlens_q[seq]; token < last; token++) {
    const int k_head = head / p.group;
    const T* q = static_cast<const T*>(b.q) + token * p.q.token + k_head * p.q.head;
    const T* k = static_cast<const T*>(b.k) + token * p.k.token + k_head * p.k.head;
    const T* v = static_cast<const T*>(b.v) + token * p.v.token + head * p.v.head;
    const float* gates = b.gates + token * p.gates.token + head * p.gates.head;
    const float beta = b.betas[token * p.betas.token + head * p.betas.head];
    float token_q[columns], token_k[columns], gate[columns];
    float k_dot_q = 0.0f;
#pragma unroll
    for (int i = 0; i < columns; i++) {
      const int column = i * kSimdWidth + lane;
      token_q[i] = to_float(q[column * p.q.dim]);
      token_k[i] = to_float(k[column * p.k.dim]);
      gate[i] = gates[p.channel_gates ? column * p.gates.dim : 0];
      if (p.gates_are_rates) {
        gate[i] = metal::precise::exp(beta * gate[i]);
      }
      k_dot_q += token_k[i] * token_q[i];
    }
    k_dot_q = sum_of_lanes(k_dot_q);
    T* out = static_cast<T*>(b.out) + (token * p.num_v_heads + head) * p.head_dim_v;
#pragma unroll
    for (int r = 0; r < kStateRows; r++) {
      float along_k = 0.0f, along_q = 0.0f;
#pragma unroll
      for (int i = 0; i < columns; i++) {
        state[r][i] *= gate[i];
        along_k += state[r][i] * token_k[i];
        along_q += state[r][i] * token_q[i];
      }
      along_q = sum_of_lanes(along_q);
      float value = r < num_rows ? to_float(v[(first_row + r) * p.v.dim]) : 0.0f;
      if (p.delta_rule) {
        value -= sum_of_lanes(along_k);
      }
      const float w = beta * value;
#pragma unroll
      for (int i = 0; i < columns; i++) {
        state[r][i] += w * token_k[i];
      }
      if (lane == 0 && r < num_rows) {
        out[first_row + r] = from_float<T>(along_q + k_dot_q * w);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kStateRows; r++) {
#pragma unroll
    for (int i = 0; i < columns; i++) {
      if (r < num_rows) {
        to[r * D + i * kSimdWidth] = state[r][i];
      }
    }
  }
}

} // namespace pomona
