// Linear attention over states of fewer columns than a warp has lanes;
// shaders/recurrent/narrow_linear_attention.metal says what a thread owns, and this is the same with warps
// for simdgroups.
#include <metal_stdlib>

#include "recurrent_buffers.h"
#include "rounding.h"
#include "shaders/common/constants.h"
#include "shaders/common/options.h"
#include "shaders/common/parameters.h"

namespace pomona {

constexpr float kLog2E = 1.4426950408889634f;

template <int LANES>
inline float sum_of_row(float value) {
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) {
    value += shuffle_xor(value, mask);
  }
  return value;
}

// Of a number below `limit`. Divisions take thirty instructions, and mostly there is nothing to divide.
inline int quotient(int number, int divisor, int limit) {
  return divisor == 1 ? number : limit <= divisor ? 0 : number / divisor;
}

template <typename T, int COLUMNS>
inline void load_strided(float (&to)[COLUMNS], const T* from, int stride) {
#pragma unroll
  for (int i = 0; i < COLUMNS; i++) {
    to[i] = to_float(*strides_behind(from, i, stride));
  }
}

// Of one token's q or k. Where they lie side by side, in one load.
template <typename T, int COLUMNS>
inline void load_elements(float (&to)[COLUMNS], const T* from, int stride) {
  if constexpr (COLUMNS == kNarrowColumns) {
    if (aligned) {
      load_four(to, from);
      return;
    }
  }
  load_strided(to, from, stride);
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

// A thread goes over SEQS sequences side by side: where its row is and what that decays by is the same
// in all of them, and their states are on their way together.
// Grid: (rows of all heads / rows of a block, 1, sequences / SEQS).
template <typename T, int D, int SEQS>
inline void narrow_linear_attention(
    const LinearAttentionParameters& p, const LinearAttentionBuffers& b) {
  constexpr int columns = D == 1 ? 1 : kNarrowColumns, lanes = D / columns;
  const int place = block_position().x * kStateSimdgroups * kSimdWidth + thread_index();
  const int num_rows = p.num_v_heads * p.head_dim_v;
  // The last warp may own fewer rows; its other lanes only take part in sums.
  const bool owns = place / lanes < num_rows;
  const int row = metal::min(place / lanes, num_rows - 1);
  const int column = place % lanes * columns;
  const int head = quotient(row, p.head_dim_v, num_rows);
  const int value_index = row - head * p.head_dim_v;
  const int k_head = quotient(head, p.group, p.num_v_heads);
  const int slot_size = num_rows * D, offset = row * D + column;
  const int q_token = p.q.token, k_token = p.k.token, v_token = p.v.token;
  const int beta_token = p.betas.token, gate_token = p.gates.token;
  const int q_dim = p.q.dim, k_dim = p.k.dim, gate_dim = p.channel_gates ? p.gates.dim : 0;
  const T* q = strides_behind(static_cast<const T*>(b.q), k_head, p.q.head);
  q = strides_behind(q, column, q_dim);
  const T* k = strides_behind(static_cast<const T*>(b.k), k_head, p.k.head);
  k = strides_behind(k, column, k_dim);
  const T* v = strides_behind(static_cast<const T*>(b.v), head, p.v.head);
  v = strides_behind(v, value_index, p.v.dim);
  const float* betas = strides_behind(b.betas, head, p.betas.head);
  const float* gates = strides_behind(b.gates, head, p.gates.head);
  gates = strides_behind(gates, column, gate_dim);
  float* states = b.states + offset;
  T* out = static_cast<T*>(b.out) + row;

  // Of sequences beyond the last there are no tokens.
  const int first_seq = block_position().z * SEQS;
  int first[SEQS], num_tokens[SEQS], longest = 0;
  float state[SEQS][columns] = {};
#pragma unroll
  for (int s = 0; s < SEQS; s++) {
    const bool exists = first_seq + s < p.num_seqs;
    const int seq = exists ? first_seq + s : 0, read = exists ? b.read_slots[seq] : -1;
    first[s] = b.cu_seqlens_q[seq];
    num_tokens[s] = exists ? b.cu_seqlens_q[seq + 1] - first[s] : 0;
    longest = metal::max(longest, num_tokens[s]);
    if (owns && read >= 0) {
      load_floats(state[s], strides_behind(states, read, slot_size));
    }
  }
  float rates[columns] = {};
  if (p.gates_are_rates) {
    load_strided(rates, gates, gate_dim);
#pragma unroll
    for (int i = 0; i < columns; i++) {
      rates[i] *= kLog2E;
    }
  }
  for (int step = 0; step < longest; step++) {
    // What no other thread reads is on its way for all of them first.
    float beta[SEQS], value[SEQS];
#pragma unroll
    for (int s = 0; s < SEQS; s++) {
      const int token = step < num_tokens[s] ? first[s] + step : 0;
      beta[s] = *strides_behind(betas, token, beta_token);
      value[s] = to_float(*strides_behind(v, token, v_token));
    }
#pragma unroll
    for (int s = 0; s < SEQS; s++) {
      if (step < num_tokens[s]) {
        const int token = first[s] + step;
        float token_q[columns], token_k[columns], gate[columns];
        load_elements(token_q, strides_behind(q, token, q_token), q_dim);
        load_elements(token_k, strides_behind(k, token, k_token), k_dim);
        if (p.gates_are_rates) {
#pragma unroll
          for (int i = 0; i < columns; i++) {
            gate[i] = power_of_two(beta[s] * rates[i]);
          }
        } else {
          load_strided(gate, strides_behind(gates, token, gate_token), gate_dim);
        }
#pragma unroll
        for (int i = 0; i < columns; i++) {
          state[s][i] *= gate[i];
        }
        if (p.delta_rule) {
          value[s] -= sum_of_row<lanes>(dot(state[s], token_k));
        }
        const float w = beta[s] * value[s];
#pragma unroll
        for (int i = 0; i < columns; i++) {
          state[s][i] += w * token_k[i];
        }
        const float along_q = sum_of_row<lanes>(dot(state[s], token_q));
        if (owns && column == 0) {
          *strides_behind(out, token, num_rows) = from_float<T>(along_q);
        }
      }
    }
  }
#pragma unroll
  for (int s = 0; s < SEQS; s++) {
    if (owns && first_seq + s < p.num_seqs) {
      store_floats(
          strides_behind(states, b.write_slots[first_seq + s], slot_size), state[s]);
    }
  }
}

} // namespace pomona
