// Linear attention over states of fewer columns than a simdgroup has lanes. Mamba 1 (Gu and Dao,
// arXiv:2312.00752) has a head of one such row for each channel. linear_attention.metal says what
// is computed.
//
// A lane owns kNarrowColumns columns of one row, and keeps them in registers while it goes over the
// tokens of one sequence; D / kNarrowColumns neighbours own the row. (Where it has one column, as in
// Griffin's RG-LRU (De et al., arXiv:2402.19427), a lane owns it.) So a simdgroup owns the next few
// rows, of whichever heads they are, and reads and writes their state as one piece, once a launch.
// Sums over a row stay among its lanes: there is no threadgroup memory, and no barrier.
#include <metal_simdgroup>
#include <metal_stdlib>
#include <metal_type_traits>

#include "../common/bindings.h"
#include "../common/constants.h"
#include "../common/parameters.h"

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
  int place = group_position.x * kStateSimdgroups * kSimdWidth + thread_index;
  int num_rows = p.num_v_heads * p.head_dim_v;
  // The last simdgroup may own fewer rows; its other lanes only take part in sums.
  bool owns = place / lanes < num_rows;
  int row = metal::min(place / lanes, num_rows - 1), column = place % lanes * columns;
  int head = row / p.head_dim_v, value_index = row % p.head_dim_v, k_head = head / p.group;
  int seq = group_position.z, read = read_slots[seq];
  int64_t slot_size = int64_t(num_rows) * D, offset = int64_t(row) * D + column;
  const device float* from = states + read * slot_size + offset;
  device float* to = states + write_slots[seq] * slot_size + offset;

  Columns<D> state = 0.0f;
  if (owns && read >= 0) {
    state = *reinterpret_cast<const device Columns<D>*>(from);
  }
  Columns<D> rates = 0.0f;
  if (p.gates_are_rates) {
    load_columns(row_of(gates, p.gates, 0, head) + column * p.gates.dim, p.gates.dim, rates);
  }
  int last = cu_seqlens_q[seq + 1];
  for (int64_t token = cu_seqlens_q[seq]; token < last; token++) {
    Columns<D> token_q, token_k, gate;
    load_columns(row_of(q, p.q, token, k_head) + column * p.q.dim, p.q.dim, token_q);
    load_columns(row_of(k, p.k, token, k_head) + column * p.k.dim, p.k.dim, token_k);
    float beta = betas[token * p.betas.token + head * p.betas.head];
    const device float* gate_row = row_of(gates, p.gates, token, head);
    if (p.gates_are_rates) {
      gate = metal::precise::exp(beta * rates);
    } else if (p.channel_gates) {
      load_columns(gate_row + column * p.gates.dim, p.gates.dim, gate);
    } else {
      gate = *gate_row;
    }
    float value = float(row_of(v, p.v, token, head)[value_index * p.v.dim]);
    state *= gate;
    if (p.delta_rule) {
      value -= sum_of_row<lanes>(dot(state, token_k));
    }
    state += beta * value * token_k;
    float along_q = sum_of_row<lanes>(dot(state, token_q));
    if (owns && column == 0) {
      out[token * num_rows + row] = T(along_q);
    }
  }
  if (owns) {
    *reinterpret_cast<device Columns<D>*>(to) = state;
  }
}
