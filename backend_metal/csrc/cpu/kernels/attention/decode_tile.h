// A tile of keys against all heads of one query token.
//
// Keys and values are walked in the order of their addresses, token by token with all heads: the
// processor recognises that, and reads ahead while this computes. Scores come kDotAccumulators
// (row, query head) pairs at a time: vectors along the head dim, reduced together.
#pragma once

#include "cpu/kernels/attention/key_rows.h"
#include "cpu/kernels/attention/softmax_state.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// Keys whose values are added to a state while it is in registers.
inline constexpr int kValueKeys = 8;

// How many keys ahead rows are asked for.
inline constexpr int kFetchedKeys = 2;
inline constexpr int kFetchedValues = 8;

// The rows of a task's first K/V head, and how far on the other heads' lie.
template <typename T>
struct DecodeTile {
  KeyRows<T> rows;
  int num_keys;
  int num_heads;
  int own; // the key that comes from k, v and not from the cache; num_keys: none does
  int64_t key_stride, value_stride;
  int64_t own_key_stride, own_value_stride;

  const T* key(int i, int head) const {
    return rows.keys[i] + head * (i == own ? own_key_stride : key_stride);
  }
  const T* value(int i, int head) const {
    return rows.values[i] + head * (i == own ? own_value_stride : value_stride);
  }
};

// A hint that `count` elements from `at` will be read.
template <typename T>
inline void fetch(const T* at, int count) {
  constexpr int kLine = 64 / sizeof(T);
  for (int i = 0; i < count; i += kLine) {
    __builtin_prefetch(at + i, 0, 2);
  }
}

// Scores of Heads query heads of each group, from the group's `first` on, for all K/V heads.
template <int Heads, typename T>
inline void score_tile(
    const DecodeTile<T>& tile, const float* queries, int head_dim, int group, float* scores) {
  constexpr int kRows = kDotAccumulators / Heads;
  int num_rows = tile.num_keys * tile.num_heads;
  int key = 0, head = 0;
  for (int first = 0; first < num_rows; first += kRows) {
    Floats sums[kDotAccumulators] = {};
    float* places[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; i++) {
      const T* row = tile.key(key, head);
      const float* q = queries + head * group * head_dim;
      places[i] = scores + head * group * kKeyTile + key;
      if (key + kFetchedKeys < tile.num_keys) {
        fetch(tile.key(key + kFetchedKeys, head), head_dim);
      }
      for (int d = 0; d < head_dim; d += kLanes) {
        Floats dims = load(row + d);
#pragma GCC unroll 4
        for (int h = 0; h < Heads; h++) {
          sums[h * kRows + i] = fma(dims, load(q + h * head_dim + d), sums[h * kRows + i]);
        }
      }
      // Past the last row, the last once more.
      if (first + i + 1 < num_rows) {
        head++;
        key += head == tile.num_heads;
        head = head == tile.num_heads ? 0 : head;
      }
    }
    float totals[kDotAccumulators];
#pragma GCC unroll 4
    for (int i = 0; i < kDotAccumulators; i += kLanes) {
      store(totals + i, row_sums(sums + i));
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; i++) {
#pragma GCC unroll 4
      for (int h = 0; h < Heads; h++) {
        places[i][h * kKeyTile] = totals[h * kRows + i];
      }
    }
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

// Adds Vectors * kLanes dims of the weighted values to Heads states; a tile's first keys scale what
// these held before.
template <int Heads, int Vectors, typename T>
inline void add_values(
    const float* weights,
    const float* kept,
    const T* const* values,
    int d,
    int num_keys,
    bool is_first,
    float* states,
    int64_t state_stride) {
  Floats sums[Heads][Vectors];
#pragma GCC unroll 4
  for (int h = 0; h < Heads; h++) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; j++) {
      sums[h][j] = load(states + h * state_stride + d + j * kLanes);
      if (is_first) {
        sums[h][j] *= kept[h];
      }
    }
  }
  for (int i = 0; i < num_keys; i++) {
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
      store(states + h * state_stride + d + j * kLanes, sums[h][j]);
    }
  }
}

// Adds the values of keys [first, last) and one K/V head to the states of Heads query heads.
template <int Heads, typename T>
inline void add_rows(
    const DecodeTile<T>& tile,
    int head,
    int first,
    int last,
    int head_dim_v,
    const float* weights,
    const float* kept,
    float* states,
    int64_t state_stride) {
  constexpr int kWide = Heads == 1 ? 2 * kValueVectors : kValueVectors;
  const T* values[kValueKeys];
  for (int i = first; i < last; i++) {
    values[i - first] = tile.value(i, head);
    if (i + kFetchedValues < tile.num_keys) {
      fetch(tile.value(i + kFetchedValues, head), head_dim_v);
    }
  }
  int count = last - first, d = 0;
  for (; d + kWide * kLanes <= head_dim_v; d += kWide * kLanes) {
    add_values<Heads, kWide>(
        weights + first, kept, values, d, count, first == 0, states, state_stride);
  }
  for (; d < head_dim_v; d += kLanes) {
    add_values<Heads, 1>(
        weights + first, kept, values, d, count, first == 0, states, state_stride);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
