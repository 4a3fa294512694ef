// Linear attention over states of fewer columns than a warp has lanes;
// shaders/narrow_linear_attention.metal says what a thread owns, and this is the same with warps
// for simdgroups.
#include <metal_stdlib>

#include "cuda/recurrent_buffers.h"
#include "cuda/rounding.h"
#include "constants.h"
#include "parameters.h"

namespace pomona {

template <int LANES>
inline float sum_of_row(float value) {
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) {
    value += shuffle_xor(value, mask);
  }
  return value;
}

template <int COLUMNS>
inline float dot(const float (&a)[COLUMNS], const float (&b)[COLUMNS]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < COLUMNS; i++) {
    sum += a[i] * b[i];
  }
  return sum;
}

// Grid: (rows of all heads / rows of a block, 1, sequences).
template <typename T, int D>
inline void narrow_linear_attention(
    const LinearAttentionParameters& p, const LinearAttentionBuffers& b) {
  constexpr int columns = D == 1 ? 1 : kNarrowColumns, lanes = D / columns;
  const int place = block_position().x * kStateSimdgroups * kSimdWidth + thread_index();
  const int num_rows = p.num_v_heads * p.head_dim_v;
  // The last warp may own fewer rows; its other lanes only take part in sums.
  const bool owns = place / lanes < num_rows;
  const int row = metal::min(place / lanes, num_rows - 1);
  const int column = place % lanes * columns;
  const int head = row / p.head_dim_v, value_index = row % p.head_dim_v, k_head = head / p.group;
  const int seq = block_position().z, read = b.read_slots[seq];
  const int64_t slot_size = int64_t(num_rows) * D, offset = int64_t(row) * D + column;
  float* to = b.states + b.write_slots[seq] * slot_size + offset;

  float state[columns] = {};
  if (owns && read >= 0) {
    load_floats(state, b.states + read * slot_size + offset);
  }
  float rates[columns] = {};
  if (p.gates_are_rates) {
#pragma unroll
    for (int i = 0; i < columns; i++) {
      rates[i] = b.gates[head * p.gates.head + (column + i) * p.gates.dim];
    }
  }
  const int last = b.cu_seqlens_q[seq + 1];
  for (int64_t token = b.cu_seqlens_q[seq]; token < last; token++) {
    const T* q = static_cast<const T*>(b.q) + token * p.q.token + k_head * p.q.head;
    const T* k = static_cast<const T*>(b.k) + token * p.k.token + k_head * p.k.head;
    const T* v = static_cast<const T*>(b.v) + token * p.v.token + head * p.v.head;
    const float* gates = b.gates + token * p.gates.token + head * p.gates.head;
    const float beta = b.betas[token * p.betas.token + head * p.betas.head];
    float token_q[columns], token_k[columns];
#pragma unroll
    for (int i = 0; i < columns; i++) {
      token_q[i] = to_float(q[(column + i) * p.q.dim]);
      token_k[i] = to_float(k[(column + i) * p.k.dim]);
      state[i] *= p.gates_are_rates
          ? metal::precise::exp(beta * rates[i])
          : gates[p.channel_gates ? (column + i) * p.gates.dim : 0];
    }
    float value = to_float(v[value_index * p.v.dim]);
    if (p.delta_rule) {
      value -= sum_of_row<lanes>(dot(state, token_k));
    }
    const float w = beta * value;
#pragma unroll
    for (int i = 0; i < columns; i++) {
      state[i] += w * token_k[i];
    }
    const float along_q = sum_of_row<lanes>(dot(state, token_q));
    if (owns && column == 0) {
      static_cast<T*>(b.out)[token * num_rows + row] = from_float<T>(along_q);
    }
  }
  if (owns) {
    store_floats(to, state);
  }
}

} // namespace pomona
