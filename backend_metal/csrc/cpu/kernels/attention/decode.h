// One query token: a stream over its keys and values, each read once for all heads of the group.
//
// A task owns some K/V heads and some splits of one sequence, and walks them tile of keys by tile:
// scores of all its heads, then weights, then values.
#pragma once

#include "cpu/kernels/attention/decode_tile.h"
#include "cpu/launch/launch_plan.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

struct DecodeScratch {
  float* queries; // [rows, head_dim], scaled
  float* states; // [rows, 2 + head_dim_v], one split's
  float* folded; // the same, of all splits so far
  float* scores; // [rows, kKeyTile]
  float* kept; // [rows]
};

inline int64_t decode_scratch_floats(const AttentionArguments& a) {
  return a.num_q_heads * (a.head_dim + 2 * partial_floats(a) + kKeyTile + 1);
}

inline DecodeScratch decode_scratch(const AttentionArguments& a, float* scratch, int num_rows) {
  DecodeScratch s;
  s.queries = scratch;
  s.scores = s.queries + num_rows * a.head_dim;
  s.states = s.scores + num_rows * kKeyTile;
  s.folded = s.states + num_rows * partial_floats(a);
  s.kept = s.folded + num_rows * partial_floats(a);
  return s;
}

// Calls `body.operator()<Heads>(first)` for the heads of a group, a few at a time.
template <typename Body>
inline void for_heads(int group, Body body) {
  for (int h = 0; h < group;) {
    if (group - h >= 4) {
      body.template operator()<4>(h);
      h += 4;
    } else if (group - h >= 2) {
      body.template operator()<2>(h);
      h += 2;
    } else {
      body.template operator()<1>(h);
      h += 1;
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

// One tile of keys for all rows of a task.
template <typename T>
inline void attend_tile(
    const AttentionArguments& a,
    const DecodeTile<T>& tile,
    int group,
    const DecodeScratch& scratch,
    float* states) {
  int64_t state_stride = partial_floats(a);
  for_heads(group, [&]<int Heads>(int h) {
    score_tile<Heads>(
        tile, scratch.queries + h * a.head_dim, a.head_dim, group, scratch.scores + h * kKeyTile);
  });
  for (int row = 0; row < group * tile.num_heads; row++) {
    scratch.kept[row] =
        weigh(a, scratch.scores + row * kKeyTile, tile.num_keys, states + row * state_stride);
  }
  for (int first = 0; first < tile.num_keys; first += kValueKeys) {
    int last = first + kValueKeys < tile.num_keys ? first + kValueKeys : tile.num_keys;
    for (int head = 0; head < tile.num_heads; head++) {
      for_heads(group, [&]<int Heads>(int h) {
        int row = head * group + h;
        add_rows<Heads>(
            tile,
            head,
            first,
            last,
            a.head_dim_v,
            scratch.scores + row * kKeyTile,
            scratch.kept + row,
            states + row * state_stride + 2,
            state_stride);
      });
    }
  }
}

template <typename T>
inline DecodeTile<T> find_tile(
    const AttentionArguments& a, const Task& task, int first, int last) {
  DecodeTile<T> tile;
  find_rows(a, task.seq, task.first_head, first, last, tile.rows);
  tile.num_keys = last - first;
  tile.num_heads = task.num_heads;
  int own = a.seq_lens[task.seq] - 1;
  bool has_own = own < last && a.slot_mapping && a.slot_mapping[a.cu_seqlens_q[task.seq]] >= 0;
  tile.own = has_own ? own - first : tile.num_keys;
  tile.key_stride = a.k_cache.head_stride;
  tile.value_stride = a.v_cache.head_stride;
  tile.own_key_stride = a.k.head_stride;
  tile.own_value_stride = a.v.head_stride;
  return tile;
}

// Keys [keys.first, keys.last) of one split.
template <typename T>
inline void decode_split(
    const AttentionArguments& a,
    const Task& task,
    KeyRange keys,
    const DecodeScratch& scratch,
    float* states) {
  for (int first = keys.first; first < keys.last;) {
    int tile_end = (first / kKeyTile + 1) * kKeyTile;
    int last = tile_end < keys.last ? tile_end : keys.last;
    attend_tile(a, find_tile<T>(a, task, first, last), task.num_rows, scratch, states);
    first = last;
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
