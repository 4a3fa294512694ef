// A tile of keys against a few query heads of one token.
//
// Keys are scored kDotAccumulators (key, head) pairs at a time: vectors along the head dim, reduced
// together. Meanwhile rows of the next tile are fetched, a key and a value for every key in use.
#pragma once

#include "cpu/kernels/key_rows.h"
#include "cpu/kernels/softmax_state.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// Asks for `count` elements from `at`; a hint, so it may reach past what there is.
template <typename T>
inline void fetch(const T* at, int count) {
  constexpr int kLine = 64 / sizeof(T);
  for (int i = 0; i < count; i += kLine) {
    __builtin_prefetch(at + i, 0, 2);
  }
}

// Scores of kDotAccumulators / Heads keys for Heads heads.
template <int Heads, typename T>
inline void score_keys(const float* q, int head_dim, const T* const* keys, float* scores) {
  constexpr int kKeys = kDotAccumulators / Heads;
  Floats sums[kDotAccumulators] = {};
  for (int d = 0; d < head_dim; d += kLanes) {
    Floats queries[Heads];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; h++) {
      queries[h] = load(q + h * head_dim + d);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; i++) {
      Floats key = load(keys[i] + d);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; h++) {
        sums[h * kKeys + i] = fma(key, queries[h], sums[h * kKeys + i]);
      }
    }
  }
  float totals[kDotAccumulators];
#pragma GCC unroll 4
  for (int i = 0; i < kDotAccumulators; i += kLanes) {
    store(totals + i, row_sums(sums + i));
  }
#pragma GCC unroll 4
  for (int h = 0; h < Heads; h++) {
    __builtin_memcpy(scores + h * kKeyTile, totals + h * kKeys, kKeys * sizeof(float));
  }
}

// The rows are padded to a whole kDotAccumulators with some that may be read.
template <int Heads, bool Fetch, typename T>
inline void score_tile(
    const AttentionArguments& a,
    const float* q,
    const KeyRows<T>& rows,
    const KeyRows<T>& fetches,
    int num_keys,
    float* scores) {
  constexpr int kKeys = kDotAccumulators / Heads;
  for (int i = 0; i < num_keys; i += kKeys) {
    if constexpr (Fetch) {
      for (int j = i; j < i + kKeys; j++) {
        fetch(fetches.keys[j], a.head_dim);
      }
    }
    score_keys<Heads>(q, a.head_dim, rows.keys + i, scores + i);
  }
}

// Turns scores into weights, and returns the factor of what the state held before.
inline float weigh(const AttentionArguments& a, float* scores, int num_keys, float* state) {
  int padded = (num_keys + kLanes - 1) / kLanes * kLanes;
  if (a.softcap > 0.0f) {
    Floats inverse = fill(1.0f / a.softcap);
    for (int i = 0; i < padded; i += kLanes) {
      store(scores + i, tanh(load(scores + i) * inverse) * a.softcap);
    }
  }
  for (int i = num_keys; i < padded; i++) {
    scores[i] = -kInfinity;
  }
  Floats largest = load(scores);
  for (int i = kLanes; i < padded; i += kLanes) {
    largest = max(largest, load(scores + i));
  }
  float top = largest_lane(largest);
  top = state[0] > top ? state[0] : top;
  Floats base = fill(finite_or_zero(top));
  Floats sum = {};
  for (int i = 0; i < padded; i += kLanes) {
    Floats weight = exp(load(scores + i) - base);
    store(scores + i, weight);
    sum += weight;
  }
  float kept = exp(state[0] - base[0]);
  state[1] = state[1] * kept + sum_of_lanes(sum);
  state[0] = top;
  return kept;
}

// Adds Vectors * kLanes dims of the weighted values to Heads states.
template <int Heads, int Vectors, bool Fetch, typename T>
inline void add_values(
    const float* weights,
    const float* kept,
    const T* const* values,
    const T* const* fetches,
    int num_keys,
    int d,
    float* states,
    int64_t state_stride) {
  Floats sums[Heads][Vectors];
#pragma GCC unroll 4
  for (int h = 0; h < Heads; h++) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; j++) {
      sums[h][j] = load(states + h * state_stride + 2 + d + j * kLanes) * kept[h];
    }
  }
  for (int i = 0; i < num_keys; i++) {
    if constexpr (Fetch) {
      fetch(fetches[i] + d, Vectors * kLanes);
    }
    Floats value[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; j++) {
      value[j] = load(values[i] + d + j * kLanes);
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; h++) {
      Floats weight = fill(weights[h * kKeyTile + i]);
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; j++) {
        sums[h][j] = fma(weight, value[j], sums[h][j]);
      }
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < Heads; h++) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; j++) {
      store(states + h * state_stride + 2 + d + j * kLanes, sums[h][j]);
    }
  }
}

// One tile of keys for Heads heads of a group.
template <int Heads, bool Fetch, typename T>
inline void attend_heads(
    const AttentionArguments& a,
    const float* q,
    const KeyRows<T>& rows,
    const KeyRows<T>& fetches,
    int num_keys,
    float* scores,
    float* states) {
  int64_t state_stride = partial_floats(a);
  score_tile<Heads, Fetch>(a, q, rows, fetches, num_keys, scores);
  float kept[Heads];
  for (int h = 0; h < Heads; h++) {
    kept[h] = weigh(a, scores + h * kKeyTile, num_keys, states + h * state_stride);
  }
  constexpr int kWide = Heads == 1 ? 2 * kValueVectors : kValueVectors;
  int d = 0;
  for (; d + kWide * kLanes <= a.head_dim_v; d += kWide * kLanes) {
    add_values<Heads, kWide, Fetch>(
        scores, kept, rows.values, fetches.values, num_keys, d, states, state_stride);
  }
  for (; d < a.head_dim_v; d += kLanes) {
    add_values<Heads, 1, Fetch>(
        scores, kept, rows.values, fetches.values, num_keys, d, states, state_stride);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
