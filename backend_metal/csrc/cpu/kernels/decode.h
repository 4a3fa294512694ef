// One query token: a stream over its keys and values, each read once for all heads of the group.
//
// A task owns some K/V heads and some splits of one sequence. Tiles of keys are walked in order and
// the heads within a tile, because that is how the cache lies in memory. The next tile is fetched in
// the order of its addresses, token by token with all heads: that is what the processor recognises
// and runs ahead of; a head's rows alone, a page apart, it does not.
#pragma once

#include "cpu/kernels/decode_tile.h"
#include "launch_plan.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

inline constexpr int64_t kDecodeTileBytes = 256 << 10;

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
    const KeyRows<T>& fetches,
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
        attend_heads<Heads, true>(a, queries, rows, fetches, num_keys, scores, head_states);
      } else {
        attend_heads<Heads, false>(a, queries, rows, fetches, num_keys, scores, head_states);
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

// Keys of a tile: as many as leave room for two tiles, all heads, in a core's L2.
template <typename T>
inline int decode_tile_keys(const AttentionArguments& a) {
  int64_t token_bytes = sizeof(T) * a.num_kv_heads * (int64_t(a.head_dim) + a.head_dim_v);
  int keys = kKeyTile;
  while (keys > 16 && keys * token_bytes > kDecodeTileBytes) {
    keys /= 2;
  }
  return keys;
}

// Head `head`'s share of the next tile, of which `next` holds the rows of the task's first head.
template <typename T>
inline void share_fetches(
    const AttentionArguments& a,
    const KeyRows<T>& next,
    int num_next,
    int head,
    int num_heads,
    KeyRows<T>& fetches) {
  int row = head * num_next / num_heads, part = head * num_next % num_heads;
  for (int i = 0; i < num_next; i++) {
    fetches.keys[i] = next.keys[row] + part * a.k_cache.head_stride;
    fetches.values[i] = next.values[row] + part * a.v_cache.head_stride;
    part++;
    row += part == num_heads;
    part = part == num_heads ? 0 : part;
  }
}

// Keys [keys.first, keys.last) of one split; the task's go on to `task_last`.
template <typename T>
inline void decode_split(
    const AttentionArguments& a,
    const Task& task,
    KeyRange keys,
    int task_last,
    const DecodeScratch& scratch,
    float* states) {
  int group = task.num_rows, tile_keys = decode_tile_keys<T>(a);
  KeyRows<T> rows, next, fetches;
  for (int first = keys.first; first < keys.last;) {
    int tile_end = (first / tile_keys + 1) * tile_keys;
    int last = tile_end < keys.last ? tile_end : keys.last;
    int next_last = last + tile_keys < task_last ? last + tile_keys : task_last;
    find_rows(a, task.seq, task.first_head, last, next_last, next);
    for (int head = 0; head < task.num_heads; head++) {
      find_rows(a, task.seq, task.first_head + head, first, last, rows);
      for (int i = last - first; i < tile_keys; i++) {
        rows.keys[i] = rows.keys[last - first - 1];
      }
      // Where there is no next row, one that is here already.
      __builtin_memcpy(&fetches, &rows, sizeof(rows));
      share_fetches(a, next, next_last - last, head, task.num_heads, fetches);
      int row = head * group;
      attend_group(
          a,
          group,
          scratch.queries + row * a.head_dim,
          rows,
          fetches,
          last - first,
          scratch.scores,
          states + row * partial_floats(a));
    }
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
  int task_end = (task.first_split + task.num_splits) * kKeysPerSplit;
  int task_last = task_end < keys.last ? task_end : keys.last;
  for (int i = 0; i < task.num_splits; i++) {
    int split_start = (task.first_split + i) * kKeysPerSplit;
    KeyRange part = {
        split_start > keys.first ? split_start : keys.first,
        split_start + kKeysPerSplit < keys.last ? split_start + kKeysPerSplit : keys.last};
    float* states = task.partial < 0
        ? scratch.states
        : partial_state(a, task.partial + i * task.split_stride);
    clear_states(a, states, num_rows);
    decode_split<T>(a, task, part, task_last, scratch, states);
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
