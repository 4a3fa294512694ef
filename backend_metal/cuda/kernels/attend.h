// Attention of one tile: up to Tile::rows rows (query tokens times query heads of a group) of one
// sequence and K/V head over a range of its keys. Flash attention (T. Dao, "FlashAttention-2", 2023).
//
// The warps that share a part of each tile's keys are a team: one warp where there is a part for each,
// the block where there is one part. Keys and values of its part go through shared memory in two
// buffers: while a team multiplies one, its copies fill the other, and no team waits for another. Where a
// key lies is looked up one tile before its copy starts, a thread a key. A warp folds its 16 rows, its
// team's keys and its part of the output's columns. Parts of the keys are added up in the end, in their
// order.
//
// Shared memory (attention_tile.h): queries; two tiles of keys and values, team by team, and in the end a team's
// state in their place; where rows lie.
//
// Tiles start at multiples of Tile::keys, and a masked key leaves a row's state as it was, bit for
// bit. So a row's result does not depend on the rows that share its tile.
#pragma once

#include "attention_buffers.h"
#include "attention_tile.h"
#include "fold_parts.h"
#include "intrinsics.h"
#include "products.h"
#include "shaders/common/options.h"
#include "shaders/attention/paging.h"
#include "shaders/common/parameters.h"
#include "shaders/attention/prefill_splits.h"
#include "shaders/attention/softmax.h"

namespace pomona {

template <typename T, int D, int DV, bool DECODE>
struct Tile {
  static constexpr AttentionTile size = attention_tile(D, DV, sizeof(T), DECODE);
  static constexpr int rows = size.rows;
  static constexpr int keys = size.keys;
  static constexpr int threads = size.threads;
  static constexpr int key_stride = size.key_stride;
  static constexpr int value_stride = size.value_stride;
  static constexpr int team_keys = size.team_keys;
  static constexpr int columns = DV / size.dim_parts;
  static constexpr int staged = team_keys * (key_stride + value_stride); // elements of a team's tile
  static_assert(D % 16 == 0 && columns % 16 == 0 && team_keys % 16 == 0, "products take 16");
  static_assert(
      size.key_parts == 1 ||
          sizeof(PartState<rows, DV>) <= 2 * size_t(staged) * sizeof(T),
      "a part's state takes the place of what its team has staged");
};

template <typename T>
inline KeyRows<T> key_rows(
    const AttentionParameters& p, const AttentionBuffers& b, Sequence seq, int kv_head) {
  return key_rows(
      p,
      static_cast<const T*>(b.k),
      static_cast<const T*>(b.v),
      static_cast<const T*>(b.k_cache),
      static_cast<const T*>(b.v_cache),
      b.slot_mapping,
      b.block_tables,
      seq.index,
      kv_head);
}

// Where a key and its value lie; null outside the range.
template <typename T>
struct KeyPlace {
  const T* key;
  const T* value;
};

template <typename T>
inline KeyPlace<T> find_key(
    const AttentionParameters& p, const KeyRows<T>& rows, Sequence seq, KeyRange keys, int position) {
  if (position < keys.first || position >= keys.last) {
    return {nullptr, nullptr};
  }
  int64_t block = rows.block_at(p, position);
  return {rows.key(p, seq, position, block), rows.value(p, seq, position, block)};
}

// 16 bytes of a row into shared memory; zeros for a row that is not there: its weight will be 0,
// and 0 times a NaN is NaN.
template <typename T>
inline void stage(T* to, const T* row, int column, bool row_aligned) {
  if (row_aligned) {
    start_copy(to, row ? row + column : row, row != nullptr);
    return;
  }
  for (int i = 0; i < 16 / int(sizeof(T)); i++) {
    to[i] = row ? row[column + i] : T{};
  }
}

// The rows of a lane: its softmax so far, and the output's columns relative to `largest`. `sum` is
// the lane's own share, until all of a row are added up.
template <int COLUMNS>
struct LaneState {
  float sums[COLUMNS / 8][4];
  float largest[2];
  float sum[2];
};

// Over the four lanes that share a row.
inline float row_max(float value) {
  value = metal::max(value, shuffle_xor(value, 1));
  return metal::max(value, shuffle_xor(value, 2));
}

inline float row_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

// Scales and masks scores of keys from `first_key` on, and turns them into weights.
template <int N, int COLUMNS>
inline void fold(
    const AttentionParameters& p,
    LaneState<COLUMNS>& state,
    float (&scores)[N][4],
    int first_key,
    const KeyRange (&seen)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float largest = state.largest[r];
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int key = first_key + j * 8 + e;
        float score = scaled_score(scores[j][2 * r + e], p.scale, p.softcap);
        bool visible = key >= seen[r].first && key < seen[r].last;
        scores[j][2 * r + e] = visible ? score : -INFINITY;
        largest = metal::max(largest, scores[j][2 * r + e]);
      }
    }
    largest = row_max(largest);
    float base = exponent_base(largest);
    float factor = rescale(state.largest[r], base);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float weight = rescale(scores[j][2 * r + e], base);
        scores[j][2 * r + e] = weight;
        sum += weight;
      }
    }
    state.largest[r] = largest;
    state.sum[r] = state.sum[r] * factor + sum;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
      state.sums[i][2 * r] *= factor;
      state.sums[i][2 * r + 1] *= factor;
    }
  }
}

template <typename T>
inline void store_pair(T* to, float first, float second) {
  *reinterpret_cast<unsigned*>(to) = pack<T>(first, second);
}
template <>
inline void store_pair<float>(float* to, float first, float second) {
  to[0] = first;
  to[1] = second;
}

template <int COLUMNS>
inline void write_outputs(const LaneState<COLUMNS>& state, int r, float* row, int lane) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; i++) {
    store_pair(row + i * 8 + lane % 4 * 2, state.sums[i][2 * r], state.sums[i][2 * r + 1]);
  }
}

// Meets the threads of one team of a block.
template <int TEAM_THREADS, int BLOCK_THREADS>
inline void sync_team(int team) {
  if constexpr (TEAM_THREADS == BLOCK_THREADS) {
    sync_block();
  } else if constexpr (TEAM_THREADS == kWarpThreads) {
    sync_warp();
  } else {
    sync_some(1 + team, TEAM_THREADS);
  }
}

// Folds keys [keys.first, keys.last) into the rows `owned`, and hands what is left of each row to
// `end_of(row, largest, sum)`, whose `store(column, first, second)` gets its columns by two: of one row by several
// threads. Before `meet_step()` nothing of the step's tokens is read, and with `reads_ahead` all else that may
// be. `write_tokens()` has the time that the first copies take.
template <
    typename T,
    int D,
    int DV,
    bool DECODE,
    typename MeetStep,
    typename WriteTokens,
    typename EndOf>
inline void attend(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    Sequence seq,
    int kv_head,
    TileRows owned,
    KeyRange keys,
    MeetStep meet_step,
    WriteTokens write_tokens,
    EndOf end_of) {
  using Tile = pomona::Tile<T, D, DV, DECODE>;
  constexpr int width = 16 / sizeof(T);
  int index = thread_index(), lane = index % kWarpThreads, warp = index / kWarpThreads;
  int dim_part = warp % Tile::size.dim_parts;
  int key_part = warp / Tile::size.dim_parts % Tile::size.key_parts;
  int row_part = warp / (Tile::size.dim_parts * Tile::size.key_parts);

  T* queries = reinterpret_cast<T*>(shared_memory());
  T* all_staged = queries + Tile::rows * Tile::key_stride;
  T* staged = all_staged + key_part * 2 * Tile::staged;
  auto* places =
      reinterpret_cast<KeyPlace<T>*>(all_staged + Tile::size.key_parts * 2 * Tile::staged) +
      key_part * 2 * Tile::team_keys;
  const int member = index % Tile::size.team_threads;
  auto sync_team = [&] { pomona::sync_team<Tile::size.team_threads, Tile::threads>(key_part); };

  KeyRows<T> rows = key_rows<T>(p, b, seq, kv_head);
  int first_tile = keys.first / Tile::keys * Tile::keys;
  int num_tiles = (keys.last - first_tile + Tile::keys - 1) / Tile::keys;
  if (keys.last <= keys.first) {
    num_tiles = 0;
  }

  // Of tile `tile`, which a thread of its own finds for each of the team's keys.
  auto find = [&](int tile) {
    KeyRange range = tile < num_tiles ? keys : KeyRange{0, 0};
    int first = first_tile + tile * Tile::keys + key_part * Tile::team_keys;
    return find_key(p, rows, seq, range, first + member);
  };
  auto copy = [&](int tile) {
    T* to = staged + tile % 2 * Tile::staged;
    const KeyPlace<T>* from = places + tile % 2 * Tile::team_keys;
    for (int i = member; i < Tile::team_keys * (D / width); i += Tile::size.team_threads) {
      int key = i / (D / width), column = i % (D / width) * width;
      stage(to + key * Tile::key_stride + column, from[key].key, column, aligned);
    }
    to += Tile::team_keys * Tile::key_stride;
    for (int i = member; i < Tile::team_keys * (DV / width); i += Tile::size.team_threads) {
      int key = i / (DV / width), column = i % (DV / width) * width;
      stage(to + key * Tile::value_stride + column, from[key].value, column, aligned);
    }
  };

  if (member < Tile::team_keys) {
    places[member] = find(0);
    places[Tile::team_keys + member] = find(1);
  }
  sync_team();
  bool is_first_old = first_tile + Tile::keys <= seq.seq_len - seq.q_len;
  bool copies_ahead = DECODE && reads_ahead && is_first_old;
  if (copies_ahead) {
    copy(0);
  }
  meet_step();
  if (!copies_ahead) {
    copy(0);
  }
  for (int i = index; i < Tile::rows * (D / width); i += Tile::threads) {
    int tile_row = i / (D / width), column = i % (D / width) * width;
    int row = owned.first + tile_row;
    const T* query = nullptr;
    if (row <= owned.last) {
      int64_t token = seq.first_token + row / p.group;
      int head = kv_head * p.group + row % p.group;
      query = static_cast<const T*>(b.q) + token * p.q.token + head * p.q.head;
    }
    stage(queries + tile_row * Tile::key_stride + column, query, column, aligned);
  }
  end_copies();
  write_tokens();

  int lane_rows[2];
  KeyRange seen[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    lane_rows[r] = owned.first + row_part * kTileRows + lane / 4 + r * 8;
    bool has_row = lane_rows[r] <= owned.last;
    seen[r] = has_row ? keys_of_some(p, seq, TileRows{lane_rows[r], lane_rows[r]}) : KeyRange{0, 0};
    seen[r].first = metal::max(seen[r].first, keys.first);
    seen[r].last = metal::min(seen[r].last, keys.last);
  }
  int first_row = owned.first + row_part * kTileRows;
  KeyRange warp_keys = keys_of_some(
      p, seq, TileRows{first_row, metal::min(first_row + kTileRows - 1, owned.last)});
  LaneState<Tile::columns> state;
#pragma unroll
  for (int i = 0; i < Tile::columns / 8; i++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      state.sums[i][e] = 0.0f;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state.largest[r] = -INFINITY;
    state.sum[r] = 0.0f;
  }

  // Queries are everybody's.
  wait_for_copies<0>();
  sync_block();
  for (int tile = 0; tile < num_tiles; tile++) {
    if (tile > 0) {
      // The tile is there, and nobody of the team reads the one before it any more.
      wait_for_copies<0>();
      sync_team();
    }
    if (tile + 1 < num_tiles) {
      copy(tile + 1);
    }
    end_copies();
    KeyPlace<T> next = {nullptr, nullptr};
    if (member < Tile::team_keys) {
      next = find(tile + 2);
    }

    const T* tile_keys = staged + tile % 2 * Tile::staged;
    const T* tile_values = tile_keys + Tile::team_keys * Tile::key_stride;
    int first_key = first_tile + tile * Tile::keys + key_part * Tile::team_keys;
    // All lanes of a warp agree on this.
    if (first_key < warp_keys.last && first_key + Tile::team_keys > warp_keys.first) {
      float scores[Tile::team_keys / 8][4] = {};
      Scores<T, D, Tile::key_stride, Tile::team_keys / 8>::add(
          scores, queries + row_part * kTileRows * Tile::key_stride, tile_keys, lane);
      fold(p, state, scores, first_key + lane % 4 * 2, seen);
      Values<T, Tile::columns, Tile::value_stride, Tile::team_keys / 8>::add(
          state.sums, scores, tile_values + dim_part * Tile::columns, lane);
    }
    if (member < Tile::team_keys) {
      places[tile % 2 * Tile::team_keys + member] = next;
    }
  }
  wait_for_copies<0>();

  if constexpr (Tile::size.key_parts > 1) {
    using State = PartState<Tile::rows, DV>;
    // Nobody of the team reads its last tile any more.
    sync_team();
    State& own = *reinterpret_cast<State*>(staged);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = lane / 4 + r * 8;
      const float sum = row_sum(state.sum[r]);
      if (lane_rows[r] > owned.last) {
        continue;
      }
      if (lane % 4 == 0 && dim_part == 0) {
        own.bounds[row][0] = state.largest[r], own.bounds[row][1] = sum;
      }
      write_outputs(state, r, own.outputs[row] + dim_part * Tile::columns, lane);
    }
    sync_block();
    const auto state_of = [&](int part) -> const State& {
      return *reinterpret_cast<const State*>(all_staged + part * 2 * Tile::staged);
    };
    const int num_pairs = (owned.last - owned.first + 1) * (DV / 2);
    for (int i = index; i < num_pairs; i += Tile::threads) {
      const int row = i / (DV / 2), column = i % (DV / 2) * 2;
      const FoldedPair pair = fold_parts<Tile::size.key_parts>(row, column, state_of);
      end_of(owned.first + row, pair.largest, pair.sum).store(column, pair.outputs[0], pair.outputs[1]);
    }
  } else {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float sum = row_sum(state.sum[r]);
      if (lane_rows[r] <= owned.last) {
        const auto end = end_of(lane_rows[r], state.largest[r], sum);
#pragma unroll
        for (int i = 0; i < Tile::columns / 8; i++) {
          const int column = dim_part * Tile::columns + i * 8 + lane % 4 * 2;
          end.store(column, state.sums[i][2 * r], state.sums[i][2 * r + 1]);
        }
      }
    }
  }
}

// What the sums of a row are multiplied by in the end.
inline float row_factor(
    const AttentionParameters& p, const AttentionBuffers& b, int head, float largest, float sum) {
  return final_factor(largest, sum, has_sinks ? b.sinks[head * p.sinks_stride] : 0.0f);
}

// Of one row and query head.
template <typename T, int DV>
inline T* out_row(
    const AttentionParameters& p, const AttentionBuffers& b, Sequence seq, int row, int head) {
  int64_t token = seq.first_token + row / p.group;
  return static_cast<T*>(b.out) + (token * p.num_q_heads + head) * DV;
}

// Where the state that a row's split leaves goes: largest score and sum; outputs.
struct PartialRow {
  float* bounds;
  float* outputs;
};

// Stores a row's columns where they belong: finished to `out`, or as the state of a split, where that has one.
template <typename T>
struct RowEnd {
  T* out;
  float factor;
  PartialRow partial;
  float largest, sum;

  void store(int column, float first, float second) const {
    if (!partial.bounds) {
      store_pair(out + column, first * factor, second * factor);
      return;
    }
    if (column == 0) {
      partial.bounds[0] = largest, partial.bounds[1] = sum;
    }
    store_pair(partial.outputs + column, first, second);
  }
};

template <typename T, int DV>
inline RowEnd<T> end_of_row(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    Sequence seq,
    int kv_head,
    int row,
    float largest,
    float sum,
    PartialRow partial) {
  if (partial.bounds) {
    return {nullptr, 1.0f, partial, largest, sum};
  }
  const int head = kv_head * p.group + row % p.group;
  const float factor = row_factor(p, b, head, largest, sum);
  return {out_row<T, DV>(p, b, seq, row, head), factor, partial, largest, sum};
}

} // namespace pomona
