// One query token: a stream over its keys and values, each read once for all heads of the group.
//
// A task owns some K/V heads and some splits of one sequence. Tiles of keys are walked in order and
// the heads within a tile, because that is how the cache lies in memory.
#pragma once

#include "cpu/kernels/decode_tile.h"
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
