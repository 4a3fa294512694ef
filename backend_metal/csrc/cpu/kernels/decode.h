// One query token: a stream over its keys and values, each read once for all heads of the group.
//
// A task owns some K/V heads and some splits of one sequence. Tiles of keys are walked in order and
// the heads within a tile, because that is how the cache lies in memory. A tile is scored
// kDotAccumulators (key, head) pairs at a time: vectors along the head dim, reduced together.
// While a tile is scored its values are fetched, and while they are added up the next keys.
#pragma once

#include "cpu/kernels/key_rows.h"
#include "cpu/kernels/softmax_state.h"
#include "launch_plan.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

struct DecodeScratch {
  float* queries; // [rows, head_dim], scaled
  float* states; // [rows, 2 + head_dim_v], one split's
  float* folded; // the same, of all splits so far
  float* scores; // [group, kKeyTile]
};

inline int64_t decode_scratch_floats(const AttentionArguments& a) {
  int group = a.num_q_heads / a.num_kv_heads;
  return a.num_q_heads * (a.head_dim + 2 * partial_floats(a)) + group * kKeyTile + 4 * kLanes;
}

inline DecodeScratch decode_scratch(const AttentionArguments& a, float* scratch, int num_rows) {
  DecodeScratch s;
  s.queries = scratch;
  s.scores = s.queries + num_rows * a.head_dim;
  s.states = s.scores + a.num_q_heads / a.num_kv_heads * kKeyTile;
  s.folded = s.states + num_rows * partial_floats(a);
  return s;
}

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
    int num_keys,
    float* scores) {
  constexpr int kKeys = kDotAccumulators / Heads;
  for (int i = 0; i < num_keys; i += kKeys) {
    if constexpr (Fetch) {
      for (int j = i; j < i + kKeys; j++) {
        fetch(rows.values[j], a.head_dim_v);
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
    const T* const* next_keys,
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
      fetch(next_keys[i] + d, Vectors * kLanes);
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
    const KeyRows<T>& next,
    int num_keys,
    float* scores,
    float* states) {
  int64_t state_stride = partial_floats(a);
  score_tile<Heads, Fetch>(a, q, rows, num_keys, scores);
  float kept[Heads];
  for (int h = 0; h < Heads; h++) {
    kept[h] = weigh(a, scores + h * kKeyTile, num_keys, states + h * state_stride);
  }
  constexpr int kWide = Heads == 1 ? 2 * kValueVectors : kValueVectors;
  int d = 0;
  for (; d + kWide * kLanes <= a.head_dim_v; d += kWide * kLanes) {
    add_values<Heads, kWide, Fetch>(
        scores, kept, rows.values, next.keys, num_keys, d, states, state_stride);
  }
  for (; d < a.head_dim_v; d += kLanes) {
    add_values<Heads, 1, Fetch>(
        scores, kept, rows.values, next.keys, num_keys, d, states, state_stride);
  }
}

// One tile of keys for all heads of a group; the first of them fetch for all.
template <typename T>
inline void attend_group(
    const AttentionArguments& a,
    int group,
    const float* q,
    const KeyRows<T>& rows,
    const KeyRows<T>& next,
    int num_keys,
    float* scores,
    float* states) {
  int64_t state_stride = partial_floats(a);
  for (int h = 0; h < group;) {
    const float* queries = q + h * a.head_dim;
    float* head_states = states + h * state_stride;
    bool is_first = h == 0;
    auto attend = [&]<int Heads>() {
      if (is_first) {
        attend_heads<Heads, true>(a, queries, rows, next, num_keys, scores, head_states);
      } else {
        attend_heads<Heads, false>(a, queries, rows, next, num_keys, scores, head_states);
      }
      h += Heads;
    };
    if (group - h >= 4) {
      attend.template operator()<4>();
    } else if (group - h >= 2) {
      attend.template operator()<2>();
    } else {
      attend.template operator()<1>();
    }
  }
}

inline void clear_states(const AttentionArguments& a, float* states, int num_rows) {
  int64_t stride = partial_floats(a);
  __builtin_memset(states, 0, num_rows * stride * sizeof(float));
  for (int row = 0; row < num_rows; row++) {
    states[row * stride] = -kInfinity;
  }
}

// Keys of one tile and one K/V head.
template <typename T>
struct DecodeTile {
  int head;
  int first, last;
  KeyRows<T> rows;

  void find(const AttentionArguments& a, const Task& task, KeyRange keys) {
    int tile_end = (first / kKeyTile + 1) * kKeyTile;
    last = tile_end < keys.last ? tile_end : keys.last;
    find_rows(a, task.seq, task.first_head + head, first, last, rows);
    for (int i = last - first; i < kKeyTile; i++) {
      rows.keys[i] = rows.keys[last - first - 1];
      rows.values[i] = rows.values[last - first - 1];
    }
  }

  // The next head of the tile, or the first of the next tile; false after the last.
  bool next(const AttentionArguments& a, const Task& task, KeyRange keys, DecodeTile& tile) const {
    bool last_head = head + 1 == task.num_heads;
    tile.head = last_head ? 0 : head + 1;
    tile.first = last_head ? last : first;
    if (tile.first >= keys.last) {
      return false;
    }
    tile.find(a, task, keys);
    return true;
  }
};

template <typename T>
inline void decode_split(
    const AttentionArguments& a,
    const Task& task,
    KeyRange keys,
    const DecodeScratch& scratch,
    float* states) {
  int group = task.num_rows;
  DecodeTile<T> tiles[2];
  tiles[0].head = 0;
  tiles[0].first = keys.first;
  tiles[0].find(a, task, keys);
  bool more = true;
  for (int i = 0; more; i ^= 1) {
    const DecodeTile<T>& tile = tiles[i];
    more = tile.next(a, task, keys, tiles[i ^ 1]);
    int row = tile.head * group;
    attend_group(
        a,
        group,
        scratch.queries + row * a.head_dim,
        tile.rows,
        more ? tiles[i ^ 1].rows : tile.rows,
        tile.last - tile.first,
        scratch.scores,
        states + row * partial_floats(a));
  }
}

template <typename T>
void decode_task(const AttentionArguments& a, const Task& task, KeyRange keys, float* memory) {
  int group = task.num_rows, num_rows = group * task.num_heads;
  int64_t state_stride = partial_floats(a);
  DecodeScratch scratch = decode_scratch(a, memory, num_rows);
  for (int row = 0; row < num_rows; row++) {
    const T* q = q_row<T>(a, task.seq, row % group, task.first_head + row / group);
    for (int d = 0; d < a.head_dim; d += kLanes) {
      store(scratch.queries + row * a.head_dim + d, load(q + d) * a.scale);
    }
  }
  clear_states(a, scratch.folded, num_rows);
  for (int i = 0; i < task.num_splits; i++) {
    int split_start = (task.first_split + i) * kKeysPerSplit;
    KeyRange part = {
        split_start > keys.first ? split_start : keys.first,
        split_start + kKeysPerSplit < keys.last ? split_start + kKeysPerSplit : keys.last};
    float* states = task.partial < 0
        ? scratch.states
        : partial_state(a, task.partial + i * task.split_stride);
    clear_states(a, states, num_rows);
    decode_split<T>(a, task, part, scratch, states);
    if (task.partial < 0) {
      for (int row = 0; row < num_rows; row++) {
        float* folded = scratch.folded + row * state_stride;
        fold(folded[0], folded[1], folded + 2, states + row * state_stride, a.head_dim_v);
      }
    }
  }
  if (task.partial >= 0) {
    return;
  }
  for (int row = 0; row < num_rows; row++) {
    int head = task.first_head + row / group;
    const float* folded = scratch.folded + row * state_stride;
    float factor =
        final_factor(folded[0], folded[1], a.sinks, q_head_of(a, row % group, head));
    write_row(out_row<T>(a, task.seq, row % group, head), folded + 2, factor, a.head_dim_v);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
