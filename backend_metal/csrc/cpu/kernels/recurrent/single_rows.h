// Linear attention, without the delta rule, of heads that have one value each, as Mamba 1 (Gu and
// Dao, arXiv:2312.00752) has a head for each channel. linear_attention.h says what is computed.
//
// The states of neighbouring heads are the rows of one matrix. kLanes of its rows stay in the
// first-level cache while a tile of tokens goes over them, each token in one pass, and what they give
// is summed over the columns of all of them at once.
#pragma once

#include "cpu/kernels/recurrent/linear_attention.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// What the heads of one key share of a token, widened; rows end in zeros.
struct SharedToken {
  int64_t index;
  float* k;
  float* q;
};

inline int64_t single_rows_floats(const LinearAttentionArguments& a) {
  return kTileTokens * 2 * whole_vectors(a.head_dim);
}

// Of `count` heads, a lane each; the others are 0.
template <typename T>
inline Floats values_of(const T* from, int64_t stride, int count) {
  if (stride == 1) {
    return count == kLanes ? load(from) : load_first(from, count);
  }
  T part[kLanes] = {};
  for (int r = 0; r < count; r++) {
    part[r] = from[r * stride];
  }
  return load(part);
}

// One token over the rows of `count` heads from `head` on, at most kLanes. kVectors: the vectors that
// are a row; 0: any row.
template <typename T, int kVectors>
inline void step_heads(
    const LinearAttentionArguments& a, const SharedToken& token, float* state, int head, int count) {
  const int64_t dim = kVectors ? kVectors * kLanes : a.head_dim, whole = dim / kLanes * kLanes;
  const int64_t first = token.index * a.num_v_heads + head;
  const T* v = static_cast<const T*>(a.v.data) + token.index * a.v.token_stride;
  const float* gates = a.gates + (a.gates_are_rates ? head : first) * (a.channel_gates ? dim : 1);
  float betas[kLanes], added[kLanes];
  const Floats beta = values_of(a.betas + first, 1, count);
  store(betas, beta);
  store(added, beta * values_of(v + head * a.v.head_stride, a.v.head_stride, count));
  Floats sums[kLanes] = {};
  auto step = [&](int r, int64_t i, Floats s, Floats gate) {
    s = fma(s, gate, fill(added[r]) * load(token.k + i));
    sums[r] = fma(s, load(token.q + i), sums[r]);
    return s;
  };
  for (int r = 0; r < count; r++) {
    float* row = state + r * dim;
    auto gate_of = [&](auto load_gates) {
      if (!a.channel_gates) {
        return fill(gates[r]);
      }
      return a.gates_are_rates ? exp(fill(betas[r]) * load_gates()) : load_gates();
    };
#pragma GCC unroll 4
    for (int64_t i = 0; i < whole; i += kLanes) {
      Floats gate = gate_of([&] { return load(gates + r * dim + i); });
      store(row + i, step(r, i, load(row + i), gate));
    }
    if (const int64_t rest = dim - whole) {
      Floats gate = gate_of([&] { return load_first(gates + r * dim + whole, rest); });
      store_first(row + whole, step(r, whole, load_first(row + whole, rest), gate), rest);
    }
  }
  T* out = static_cast<T*>(a.out) + first;
  if (count == kLanes) {
    store(out, row_sums(sums));
  } else {
    store_first(out, row_sums(sums), count);
  }
}

// The same where a row is one number, as in Griffin's RG-LRU (De et al., arXiv:2402.19427): a lane is
// a head's whole state.
template <typename T>
inline void step_numbers(
    const LinearAttentionArguments& a, const SharedToken& token, float* state, int head, int count) {
  const int64_t first = token.index * a.num_v_heads + head;
  const T* v = static_cast<const T*>(a.v.data) + token.index * a.v.token_stride;
  const float* gates = a.gates + (a.gates_are_rates ? head : first);
  const Floats beta = values_of(a.betas + first, 1, count);
  Floats gate = values_of(gates, 1, count);
  gate = a.gates_are_rates ? exp(beta * gate) : gate;
  const Floats added = beta * values_of(v + head * a.v.head_stride, a.v.head_stride, count);
  const Floats s = fma(values_of(state, 1, count), gate, added * token.k[0]);
  T* out = static_cast<T*>(a.out) + first;
  if (count == kLanes) {
    store(state, s);
    store(out, s * token.q[0]);
  } else {
    store_first(state, s, count);
    store_first(out, s * token.q[0], count);
  }
}

// Heads of one key, of one sequence.
template <typename T, int kVectors>
void attend_single_rows(
    const LinearAttentionArguments& a, int seq, int first_head, int num_heads, float* scratch) {
  const int64_t dim = a.head_dim, slot = a.num_v_heads * dim;
  const int32_t read = a.slots.read_slots[seq], write = a.slots.write_slots[seq];
  const float* from = a.states + read * slot + first_head * dim;
  float* to = a.states + write * slot + first_head * dim;
  const int k_head = first_head / (a.num_v_heads / a.num_k_heads);
  auto key_row = [&](const Rows& rows, int64_t token) {
    return static_cast<const T*>(rows.data) + token * rows.token_stride + k_head * rows.head_stride;
  };
  SharedToken tile[kTileTokens];
  for (SharedToken& token : tile) {
    token.k = scratch;
    token.q = token.k + whole_vectors(dim);
    scratch = token.q + whole_vectors(dim);
  }
  // Rows of the old state, before the first token goes over them.
  auto fetch = [&](int head, int count) {
    if (read < 0) {
      __builtin_memset(to + head * dim, 0, count * dim * sizeof(float));
    } else if (read != write) {
      __builtin_memcpy(to + head * dim, from + head * dim, count * dim * sizeof(float));
    }
  };
  const int begin = a.slots.cu_seqlens_q[seq], end = a.slots.cu_seqlens_q[seq + 1];
  if (begin == end) {
    fetch(0, num_heads);
  }
  for (int first = begin; first < end; first += kTileTokens) {
    const int tokens = end - first < kTileTokens ? end - first : kTileTokens;
    for (int i = 0; i < tokens; i++) {
      tile[i].index = first + i;
      widen(key_row(a.k, first + i), tile[i].k, dim);
      widen(key_row(a.q, first + i), tile[i].q, dim);
    }
    for (int head = 0; head < num_heads; head += kLanes) {
      const int count = num_heads - head < kLanes ? num_heads - head : kLanes;
      if (first == begin) {
        fetch(head, count);
      }
      for (int i = 0; i < tokens; i++) {
        if (dim == 1) {
          step_numbers<T>(a, tile[i], to + head, first_head + head, count);
        } else {
          step_heads<T, kVectors>(a, tile[i], to + head * dim, first_head + head, count);
        }
      }
    }
  }
}

template <typename T>
void attend_single_rows(
    const LinearAttentionArguments& a, int seq, int first_head, int num_heads, float* scratch) {
  // The states of published models have 16 columns.
  constexpr int kVectors = 16 / kLanes;
  if (a.head_dim == 16) {
    return attend_single_rows<T, kVectors>(a, seq, first_head, num_heads, scratch);
  }
  attend_single_rows<T, 0>(a, seq, first_head, num_heads, scratch);
}

inline void single_rows(
    const LinearAttentionArguments& a, int seq, int first_head, int num_heads, float* scratch) {
  switch (a.type) {
    case ElementType::float32:
      return attend_single_rows<float>(a, seq, first_head, num_heads, scratch);
    case ElementType::float16:
      return attend_single_rows<Float16>(a, seq, first_head, num_heads, scratch);
    case ElementType::bfloat16:
      return attend_single_rows<BFloat16>(a, seq, first_head, num_heads, scratch);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
