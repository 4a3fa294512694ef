// Linear attention over states of fewer columns than a simdgroup has lanes. Mamba 1 (Gu and Dao,
// arXiv:2312.00752) has a head of one such row for each channel. linear_attention.metal says what
// is computed.
//
// A lane owns kNarrowColumns columns of kNarrowRows rows, and keeps them in registers while it goes
// over the tokens of one sequence; D / kNarrowColumns neighbours own a row. (Where it has one column,
// as in Griffin's RG-LRU (De et al., arXiv:2402.19427), a lane owns it.) The first rows of a
// threadgroup's lanes lie one behind another, of whichever heads they are, then the second ones, and
// so on; each is read and written as one piece, once a launch, and all are on their way at once. Sums
// over a row stay among its lanes: there is no threadgroup memory, and no barrier.
#include <metal_simdgroup>
#include <metal_stdlib>
#include <metal_type_traits>

#include "bindings.h"
#include "constants.h"
#include "parameters.h"

namespace pomona {

// What a lane owns of a row.
template <int D>
using Columns = metal::conditional_t<D == 1, float, float4>;

template <typename T>
inline void load_columns(const device T* row, int64_t stride, thread float& to) {
  to = float(row[0]);
}

template <typename T>
inline void load_columns(const device T* row, int64_t stride, thread float4& to) {
  to = float4(float(row[0]), float(row[stride]), float(row[2 * stride]), float(row[3 * stride]));
}

inline float dot(float a, float b) {
  return a * b;
}

inline float dot(float4 a, float4 b) {
  return metal::dot(a, b);
}

template <typename T>
inline const device T* row_of(const device T* x, ElementStrides strides, int64_t token, int head) {
  return x + token * strides.token + head * strides.head;
}

template <int LANES>
inline float sum_of_row(float value) {
  for (int mask = 1; mask < LANES; mask *= 2) {
    value += metal::simd_shuffle_xor(value, ushort(mask));
  }
  return value;
}

} // namespace pomona

// Grid: (rows of all heads / rows of a threadgroup, 1, sequences).
template <typename T, int D>
[[kernel]] void narrow_linear_attention(
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
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  static_assert(kNarrowColumns == 4, "a lane's columns are a float4");
  constexpr int columns = D == 1 ? 1 : kNarrowColumns, lanes = D / columns;
  constexpr int stride = kStateSimdgroups * kSimdWidth / lanes; // from one row of a lane to the next
  int first_row = group_position.x * stride * kNarrowRows + thread_index / lanes;
  int column = thread_index % lanes * columns;
  int num_rows = p.num_v_heads * p.head_dim_v;
  int seq = group_position.z, read = read_slots[seq];
  int64_t slot_size = int64_t(num_rows) * D;

  // The last threadgroup may own fewer rows; its other lanes only take part in sums.
  bool owns[kNarrowRows];
  int row[kNarrowRows], head[kNarrowRows];
  Columns<D> state[kNarrowRows], rates[kNarrowRows];
  for (int r = 0; r < kNarrowRows; r++) {
    owns[r] = first_row + r * stride < num_rows;
    row[r] = metal::min(first_row + r * stride, num_rows - 1);
    head[r] = row[r] / p.head_dim_v;
    state[r] = 0.0f;
    rates[r] = 0.0f;
    if (owns[r] && read >= 0) {
      const device float* from = states + read * slot_size + int64_t(row[r]) * D + column;
      state[r] = *reinterpret_cast<const device Columns<D>*>(from);
    }
    if (p.gates_are_rates) {
      const device float* from = row_of(gates, p.gates, 0, head[r]) + column * p.gates.dim;
      load_columns(from, p.gates.dim, rates[r]);
    }
  }
  int last = cu_seqlens_q[seq + 1];
  for (int64_t token = cu_seqlens_q[seq]; token < last; token++) {
    Columns<D> token_q, token_k, gate;
    for (int r = 0; r < kNarrowRows; r++) {
      int k_head = head[r] / p.group;
      if (r == 0 || k_head != head[r - 1] / p.group) {
        load_columns(row_of(q, p.q, token, k_head) + column * p.q.dim, p.q.dim, token_q);
        load_columns(row_of(k, p.k, token, k_head) + column * p.k.dim, p.k.dim, token_k);
      }
      float beta = betas[token * p.betas.token + head[r] * p.betas.head];
      const device float* gate_row = row_of(gates, p.gates, token, head[r]);
      if (p.gates_are_rates) {
        gate = metal::precise::exp(beta * rates[r]);
      } else if (p.channel_gates) {
        load_columns(gate_row + column * p.gates.dim, p.gates.dim, gate);
      } else {
        gate = *gate_row;
      }
      float value = float(row_of(v, p.v, token, head[r])[row[r] % p.head_dim_v * p.v.dim]);
      state[r] *= gate;
      if (p.delta_rule) {
        value -= sum_of_row<lanes>(dot(state[r], token_k));
      }
      state[r] += beta * value * token_k;
      float along_q = sum_of_row<lanes>(dot(state[r], token_q));
      if (owns[r] && column == 0) {
        out[token * num_rows + row[r]] = T(along_q);
      }
    }
  }
  for (int r = 0; r < kNarrowRows; r++) {
    if (owns[r]) {
      device float* to = states + write_slots[seq] * slot_size + int64_t(row[r]) * D + column;
      *reinterpret_cast<device Columns<D>*>(to) = state[r];
    }
  }
}
