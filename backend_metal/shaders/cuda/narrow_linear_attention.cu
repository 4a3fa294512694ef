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
  constexpr int stride = kStateSimdgroups * kSimdWidth / lanes; // from one row of a lane to the next
  const int first_row =
      block_position().x * stride * kNarrowRows + thread_index() / lanes;
  const int column = thread_index() % lanes * columns;
  const int num_rows = p.num_v_heads * p.head_dim_v;
  const int seq = block_position().z, read = b.read_slots[seq];
  const int64_t slot_size = int64_t(num_rows) * D;

  // The last block may own fewer rows; its other lanes only take part in sums.
  bool owns[kNarrowRows];
  int row[kNarrowRows], head[kNarrowRows];
  float state[kNarrowRows][columns] = {}, rates[kNarrowRows][columns] = {};
#pragma unroll
  for (int r = 0; r < kNarrowRows; r++) {
    owns[r] = first_row + r * stride < num_rows;
    row[r] = metal::min(first_row + r * stride, num_rows - 1);
    head[r] = row[r] / p.head_dim_v;
    if (owns[r] && read >= 0) {
      load_floats(state[r], b.states + read * slot_size + int64_t(row[r]) * D + column);
    }
    if (p.gates_are_rates) {
#pragma unroll
      for (int i = 0; i < columns; i++) {
        rates[r][i] = b.gates[head[r] * p.gates.head + (column + i) * p.gates.dim];
      }
    }
  }
  const int last = b.cu_seqlens_q[seq + 1];
  for (int64_t token = b.cu_seqlens_q[seq]; token < last; token++) {
    float token_q[columns] = {}, token_k[columns] = {};
#pragma unroll
    for (int r = 0; r < kNarrowRows; r++) {
      const int k_head = head[r] / p.group;
      if (r == 0 || k_head != head[r - 1] / p.group) {
        const T* q = static_cast<const T*>(b.q) + token * p.q.token + k_head * p.q.head;
        const T* k = static_cast<const T*>(b.k) + token * p.k.token + k_head * p.k.head;
#pragma unroll
        for (int i = 0; i < columns; i++) {
          token_q[i] = to_float(q[(column + i) * p.q.dim]);
          token_k[i] = to_float(k[(column + i) * p.k.dim]);
        }
      }
      const T* v = static_cast<const T*>(b.v) + token * p.v.token + head[r] * p.v.head;
      const float* gates = b.gates + token * p.gates.token + head[r] * p.gates.head;
      const float beta = b.betas[token * p.betas.token + head[r] * p.betas.head];
#pragma unroll
      for (int i = 0; i < columns; i++) {
        state[r][i] *= p.gates_are_rates
            ? metal::precise::exp(beta * rates[r][i])
            : gates[p.channel_gates ? (column + i) * p.gates.dim : 0];
      }
      float value = to_float(v[row[r] % p.head_dim_v * p.v.dim]);
      if (p.delta_rule) {
        value -= sum_of_row<lanes>(dot(state[r], token_k));
      }
      const float w = beta * value;
#pragma unroll
      for (int i = 0; i < columns; i++) {
        state[r][i] += w * token_k[i];
      }
      const float along_q = sum_of_row<lanes>(dot(state[r], token_q));
      if (owns[r] && column == 0) {
        static_cast<T*>(b.out)[token * num_rows + row[r]] = from_float<T>(along_q);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kNarrowRows; r++) {
    if (owns[r]) {
      store_floats(
          b.states + b.write_slots[seq] * slot_size + int64_t(row[r]) * D + column, state[r]);
    }
  }
}

} // namespace pomona
