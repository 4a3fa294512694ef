// Linear attention with decay, one head of one sequence at a time. For each token, with the state
// S [head_dim_v, head_dim] in float32:
//
//   S <- S diag(gate) + w k^T,  out = S q
//   w = beta v                       Mamba 2 (Dao and Gu, arXiv:2405.21060)
//   w = beta (v - S diag(gate) k)    the gated delta rule (Yang et al., arXiv:2412.06464)
//
// The rows of S have nothing to do with each other. So a few of them stay in the first-level cache
// while a tile of tokens goes over them, and each token passes over them once to read and once to
// write: out = S diag(gate) q + (k . q) w needs nothing of the new state.
#pragma once

#include "cpu/kernels/elementary.h"
#include "cpu/kernels/typed_rows.h"
#include "cpu/launch/recurrent_arguments.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

inline constexpr int kTileTokens = 8;

inline int64_t whole_vectors(int64_t dim) {
  return (dim + kLanes - 1) / kLanes * kLanes;
}

// One token, widened; rows end in zeros.
struct LinearToken {
  float* gate;
  float* k;
  float* q;
  float* v;
  float* out;
  float k_dot_q;
  float beta;
};

inline int64_t linear_attention_floats(const LinearAttentionArguments& a) {
  return kTileTokens * (3 * whole_vectors(a.head_dim) + 2 * whole_vectors(a.head_dim_v));
}

// One token over `kRows` rows of S from `row` on.
template <int kRows>
inline void step_rows(
    const LinearAttentionArguments& a, const LinearToken& token, float* state, int row) {
  const int64_t dim = a.head_dim, whole = dim / kLanes * kLanes;
  Floats sums[2 * kRows] = {};
  for (int64_t i = 0; i < dim; i += kLanes) {
    Floats gate = load(token.gate + i);
    Floats gated_k = gate * load(token.k + i), gated_q = gate * load(token.q + i);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      Floats s = i < whole ? load(state + r * dim + i) : load_first(state + r * dim + i, dim - i);
      sums[r] = fma(s, gated_k, sums[r]);
      sums[kRows + r] = fma(s, gated_q, sums[kRows + r]);
    }
  }
  float dots[2 * kRows];
  if constexpr (2 * kRows % kLanes == 0) {
    for (int r = 0; r < 2 * kRows; r += kLanes) {
      store(dots + r, row_sums(sums + r));
    }
  } else {
    for (int r = 0; r < 2 * kRows; r++) {
      dots[r] = sum_of_lanes(sums[r]);
    }
  }
  Floats added[kRows];
  for (int r = 0; r < kRows; r++) {
    float v = token.v[row + r];
    float w = token.beta * (a.delta_rule ? v - dots[r] : v);
    token.out[row + r] = dots[kRows + r] + token.k_dot_q * w;
    added[r] = fill(w);
  }
  for (int64_t i = 0; i < dim; i += kLanes) {
    Floats gate = load(token.gate + i), k = load(token.k + i);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      float* at = state + r * dim + i;
      if (i < whole) {
        store(at, fma(load(at), gate, k * added[r]));
      } else {
        store_first(at, fma(load_first(at, dim - i), gate, k * added[r]), dim - i);
      }
    }
  }
}

template <typename T>
inline void load_token(
    const LinearAttentionArguments& a, int64_t index, int head, LinearToken& token) {
  const int k_head = head / (a.num_v_heads / a.num_k_heads);
  auto row = [&](const Rows& rows, int h) {
    return static_cast<const T*>(rows.data) + index * rows.token_stride + h * rows.head_stride;
  };
  widen(row(a.q, k_head), token.q, a.head_dim);
  widen(row(a.k, k_head), token.k, a.head_dim);
  widen(row(a.v, head), token.v, a.head_dim_v);
  const int64_t gate = index * a.num_v_heads + head;
  token.beta = a.betas[gate];
  if (a.channel_gates) {
    widen(a.gates + (a.gates_are_rates ? head : gate) * a.head_dim, token.gate, a.head_dim);
  }
  Floats sum = {};
  for (int64_t i = 0; i < a.head_dim; i += kLanes) {
    if (a.gates_are_rates) {
      store(token.gate + i, exp(fill(token.beta) * load(token.gate + i)));
    } else if (!a.channel_gates) {
      store(token.gate + i, fill(a.gates[gate]));
    }
    sum = fma(load(token.k + i), load(token.q + i), sum);
  }
  token.k_dot_q = sum_of_lanes(sum);
}

template <typename T>
void attend_linearly(const LinearAttentionArguments& a, int seq, int head, float* scratch) {
  const int64_t row_size = a.head_dim, head_size = row_size * a.head_dim_v;
  const int32_t read = a.slots.read_slots[seq], write = a.slots.write_slots[seq];
  float* to = a.states + (int64_t(write) * a.num_v_heads + head) * head_size;
  const float* from = a.states + (int64_t(read) * a.num_v_heads + head) * head_size;
  LinearToken tile[kTileTokens];
  for (LinearToken& token : tile) {
    const int64_t dim = whole_vectors(a.head_dim), dim_v = whole_vectors(a.head_dim_v);
    token.gate = scratch;
    token.k = token.gate + dim;
    token.q = token.k + dim;
    token.v = token.q + dim;
    token.out = token.v + dim_v;
    scratch = token.out + dim_v;
  }
  // Rows of the old state, before the first token goes over them.
  auto fetch = [&](int row, int count) {
    if (read < 0) {
      __builtin_memset(to + row * row_size, 0, count * row_size * sizeof(float));
    } else if (read != write) {
      __builtin_memcpy(
          to + row * row_size, from + row * row_size, count * row_size * sizeof(float));
    }
  };
  const int begin = a.slots.cu_seqlens_q[seq], end = a.slots.cu_seqlens_q[seq + 1];
  if (begin == end) {
    fetch(0, a.head_dim_v);
  }
  for (int first = begin; first < end; first += kTileTokens) {
    const int count = end - first < kTileTokens ? end - first : kTileTokens;
    for (int i = 0; i < count; i++) {
      load_token<T>(a, first + i, head, tile[i]);
    }
    int row = 0;
    for (; row + kPanelRows <= a.head_dim_v; row += kPanelRows) {
      if (first == begin) {
        fetch(row, kPanelRows);
      }
      for (int i = 0; i < count; i++) {
        step_rows<kPanelRows>(a, tile[i], to + row * row_size, row);
      }
    }
    for (; row < a.head_dim_v; row++) {
      if (first == begin) {
        fetch(row, 1);
      }
      for (int i = 0; i < count; i++) {
        step_rows<1>(a, tile[i], to + row * row_size, row);
      }
    }
    for (int i = 0; i < count; i++) {
      T* out = static_cast<T*>(a.out) + (int64_t(first + i) * a.num_v_heads + head) * a.head_dim_v;
      narrow(tile[i].out, out, a.head_dim_v);
    }
  }
}

inline void linear_attention(
    const LinearAttentionArguments& a, int seq, int head, float* scratch) {
  switch (a.type) {
    case ElementType::float32:
      return attend_linearly<float>(a, seq, head, scratch);
    case ElementType::float16:
      return attend_linearly<Float16>(a, seq, head, scratch);
    case ElementType::bfloat16:
      return attend_linearly<BFloat16>(a, seq, head, scratch);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
