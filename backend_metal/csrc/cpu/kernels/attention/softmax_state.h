// Streaming softmax (Milakov and Gimelshein, arXiv:1805.02867): the state of a row is the largest
// score, the sum of exp(score - largest), and the values so weighted.
//
// Partial states of a launch lie in one float array, each [largest, sum, values...]; a plan's
// `partial` counts states.
#pragma once

#include "cpu/launch/arguments.h"
#include "cpu/kernels/convert.h"
#include "cpu/kernels/elementary.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// exp(score - largest) must be 0, not NaN, when no score was seen.
inline Floats finite_or_zero(Floats largest) {
  return largest == -kInfinity ? Floats{} : largest;
}

inline float finite_or_zero(float largest) {
  return largest == -kInfinity ? 0.0f : largest;
}

inline int64_t partial_floats(const AttentionArguments& a) {
  return a.head_dim_v + 2;
}

inline float* partial_state(const AttentionArguments& a, int64_t partial) {
  return a.partials + partial * partial_floats(a);
}

// What the values are multiplied by at the end: 1 / sum, with the sink's share; 0 for no key.
inline float final_factor(float largest, float sum, const float* sinks, int q_head) {
  if (sum == 0.0f) {
    return 0.0f;
  }
  if (!sinks) {
    return 1.0f / sum;
  }
  float sink = sinks[q_head];
  float top = sink > largest ? sink : largest;
  float weight = exp(largest - top);
  return weight / (sum * weight + exp(sink - top));
}

// Folds one split's state into a row's, in place.
inline void fold(
    float& largest, float& sum, float* values, const float* split, int head_dim_v) {
  float top = split[0] > largest ? split[0] : largest;
  float base = finite_or_zero(top);
  float kept = exp(largest - base), added = exp(split[0] - base);
  largest = top;
  sum = sum * kept + split[1] * added;
  for (int d = 0; d < head_dim_v; d += kLanes) {
    store(values + d, fma(load(values + d), fill(kept), load(split + 2 + d) * added));
  }
}

template <typename T>
inline void write_row(T* out, const float* values, float factor, int head_dim_v) {
  for (int d = 0; d < head_dim_v; d += kLanes) {
    store(out + d, load(values + d) * factor);
  }
}

// The output row of a tile's row: token * group + head within the group.
template <typename T>
inline T* out_row(const AttentionArguments& a, int seq, int row, int kv_head) {
  int group = a.num_q_heads / a.num_kv_heads;
  int64_t token = a.cu_seqlens_q[seq] + row / group;
  return (T*)a.out.data + token * a.out.token_stride +
      (kv_head * group + row % group) * a.out.head_stride;
}

inline int q_head_of(const AttentionArguments& a, int row, int kv_head) {
  int group = a.num_q_heads / a.num_kv_heads;
  return kv_head * group + row % group;
}

// The query row, widened and multiplied by the scale.
template <typename T>
inline const T* q_row(const AttentionArguments& a, int seq, int row, int kv_head) {
  int group = a.num_q_heads / a.num_kv_heads;
  int64_t token = a.cu_seqlens_q[seq] + row / group;
  return (const T*)a.q.data + token * a.q.token_stride +
      (kv_head * group + row % group) * a.q.head_stride;
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
