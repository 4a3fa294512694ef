// Linear attention with decay over recurrent state. For each token, with the state S
// [head_dim_v, head_dim] in float32:
//
//   S <- S diag(gate) + w k^T,  out = S q
//   w = beta v                       Mamba 2 (Dao and Gu, arXiv:2405.21060)
//   w = beta (v - S diag(gate) k)    the gated delta rule (Yang et al., arXiv:2412.06464)
//
// A simdgroup owns kStateRows rows of one head's S and keeps them in registers while it goes over
// the tokens of one sequence: state is read once and written once a launch. A lane owns every 32nd
// column, so that a simdgroup reads neighbours at once. out = S diag(gate) q + (k . q) w needs nothing of the new state, so both
// products of a row are summed over the lanes at once. Rows have nothing to do with each other:
// there is no threadgroup memory, and no barrier.
#include <metal_simdgroup>
#include <metal_stdlib>

#include "../common/bindings.h"
#include "../common/constants.h"
#include "../common/parameters.h"

namespace pomona {

template <typename T, int COUNT>
inline void load_columns(const device T* row, int64_t stride, uint lane, thread float* to) {
  for (int i = 0; i < COUNT; i++) {
    to[i] = float(row[(i * kSimdWidth + lane) * stride]);
  }
}

template <typename T>
inline const device T* row_of(const device T* x, ElementStrides strides, int64_t token, int head) {
  return x + token * strides.token + head * strides.head;
}

} // namespace pomona

// Grid: (rows / (kStateRows * kStateSimdgroups), v heads, sequences).
template <typename T, int D>
[[kernel]] void linear_attention(
    constant pomona::LinearAttentionParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* q [[buffer(POMONA_BUFFER_Q)]],
    const device T* k [[buffer(POMONA_BUFFER_K)]],
    const device T* v [[buffer(POMONA_BUFFER_V)]],
    device float* states [[buffer(POMONA_BUFFER_STATES)]],
    const device float* gates [[buffer(POMONA_BUFFER_GATES)]],
    const device float* betas [[buffer(POMONA_BUFFER_BETAS)]],
    const device int* read_slots [[buffer(POMONA_BUFFER_READ_SLOTS)]],
    const device int* write_slots [[buffer(POMONA_BUFFER_WRITE_SLOTS)]],
    const device int* cu_seqlens_q [[buffer(POMONA_BUFFER_CU_SEQLENS_Q)]],
    device T* out [[buffer(POMONA_BUFFER_OUT)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using namespace pomona;
  constexpr int columns = D / kSimdWidth;
  int first_row = (group_position.x * kStateSimdgroups + simdgroup) * kStateRows;
  int num_rows = metal::min(kStateRows, p.head_dim_v - first_row);
  if (num_rows <= 0) {
    return;
  }
  int head = group_position.y, seq = group_position.z;
  int read = read_slots[seq];
  int64_t head_rows = int64_t(head) * p.head_dim_v + first_row;
  int64_t slot_rows = int64_t(p.num_v_heads) * p.head_dim_v;
  const device float* from = states + (read * slot_rows + head_rows) * D;
  device float* to = states + (write_slots[seq] * slot_rows + head_rows) * D;

  float state[kStateRows][columns] = {};
  for (int r = 0; r < num_rows && read >= 0; r++) {
    load_columns<float, columns>(from + r * D, 1, lane, state[r]);
  }
  int last = cu_seqlens_q[seq + 1];
  for (int64_t token = cu_seqlens_q[seq]; token < last; token++) {
    float token_q[columns], token_k[columns], gate[columns];
    int k_head = head / p.group;
    load_columns<T, columns>(row_of(q, p.q, token, k_head), p.q.dim, lane, token_q);
    load_columns<T, columns>(row_of(k, p.k, token, k_head), p.k.dim, lane, token_k);
    float beta = betas[token * p.betas.token + head * p.betas.head];
    const device float* gate_row = row_of(gates, p.gates, token, head);
    float k_dot_q = 0.0f;
    for (int i = 0; i < columns; i++) {
      gate[i] = gate_row[p.channel_gates ? (i * kSimdWidth + lane) * p.gates.dim : 0];
      if (p.gates_are_rates) {
        gate[i] = metal::precise::exp(beta * gate[i]);
      }
      k_dot_q += token_k[i] * token_q[i];
    }
    k_dot_q = metal::simd_sum(k_dot_q);
    const device T* values = row_of(v, p.v, token, head) + first_row * p.v.dim;
    device T* out_row = out + (token * p.num_v_heads + head) * p.head_dim_v + first_row;
    for (int r = 0; r < num_rows; r++) {
      float along_k = 0.0f, along_q = 0.0f;
      for (int i = 0; i < columns; i++) {
        state[r][i] *= gate[i];
        along_k += state[r][i] * token_k[i];
        along_q += state[r][i] * token_q[i];
      }
      along_q = metal::simd_sum(along_q);
      float value = float(values[r * p.v.dim]);
      if (p.delta_rule) {
        value -= metal::simd_sum(along_k);
      }
      float w = beta * value;
      for (int i = 0; i < columns; i++) {
        state[r][i] += w * token_k[i];
      }
      if (lane == 0) {
        out_row[r] = T(along_q + k_dot_q * w);
      }
    }
  }
  for (int r = 0; r < num_rows; r++) {
    for (int i = 0; i < columns; i++) {
      to[r * D + i * kSimdWidth + lane] = state[r][i];
    }
  }
}
