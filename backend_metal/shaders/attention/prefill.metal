// Attention of sequences with more than one query token: flash attention on tiles of rows.
//
// A threadgroup owns a tile: `kRows` consecutive rows (query tokens times query heads of a group)
// of one sequence and one K/V head, so that a key is loaded once for all the heads that share it.
// It walks the keys that any of its rows sees, `kKeys` at a time, through threadgroup memory.
//
// A simdgroup owns 8 rows and all columns of their queries and outputs, which stay in registers; of
// wide heads, a half or a quarter of the columns. Such column groups add up their shares of the
// scores through threadgroup memory, all in the same order, and each then computes the softmax of
// its rows by itself, on the same bits. A row's softmax belongs to the four lanes of its LaneMap.
//
// Threadgroup memory (prefill_tile.h): kKeys rows of K, then the same tokens' V in their place, and
// the shares of the scores.
//
// Simdgroups multiply only what some of their 8 rows see; they all stage and wait.
//
// The keys of a sequence with few tiles are cut into splits (prefill_splits.h), a threadgroup each,
// whose states go to `prefill_reduce`; otherwise rows are finished here.
//
// Key tiles start at multiples of kKeys, and a masked key leaves a row's state as it was, bit for
// bit. So a row's result does not depend on the rows that share its tile.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "../common/bindings.h"
#include "../common/matrix_products.h"
#include "../common/options.h"
#include "paging.h"
#include "../common/parameters.h"
#include "prefill_splits.h"
#include "prefill_tile.h"
#include "softmax.h"
#include "splits.h"

namespace pomona {

template <typename T, int D, int DV>
struct TileSize {
  static constant constexpr const int kRows = prefill_tile(D, DV, sizeof(T)).rows;
  static constant constexpr const int kKeys = prefill_tile(D, DV, sizeof(T)).keys;
  static constant constexpr const int kThreads = prefill_tile(D, DV, sizeof(T)).threads;
  static constant constexpr const int kStride = prefill_tile(D, DV, sizeof(T)).stride;
  static constant constexpr const int kColumnGroups = prefill_tile(D, DV, sizeof(T)).column_groups;
  static constant constexpr const int kStagedBytes = prefill_tile(D, DV, sizeof(T)).staged_bytes;
  static constant constexpr const int kColumns = D / kColumnGroups;
  static constant constexpr const int kColumnsV = DV / kColumnGroups;
};

// Copies a row into threadgroup memory, as one of `PARTS` threads. A token that is not there
// becomes zeros: its weight will be 0, and 0 times a NaN is NaN.
template <typename T, int COLUMNS, int PARTS>
inline void stage_row(threadgroup T* to, const device T* from, bool present, int part) {
  constexpr int width = 16 / sizeof(T);
  for (int column = part * width; column < COLUMNS; column += PARTS * width) {
    threadgroup uint4* chunk = reinterpret_cast<threadgroup uint4*>(to + column);
    if (!present) {
      *chunk = uint4(0);
    } else if (aligned) {
      *chunk = *reinterpret_cast<const device uint4*>(from + column);
    } else {
      for (int i = 0; i < width; i++) {
        to[column + i] = from[column + i];
      }
    }
  }
}

// Adds up the column groups' shares, each [kRows, kKeys]. `row` is the lane's in the first of them.
template <typename Tile>
inline void add_shares(
    thread Matrix (&scores)[Tile::kKeys / kMatrixDim],
    const threadgroup float* row,
    LaneMap at) {
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::kKeys / kMatrixDim; j++) {
    float2 sum = float2(0.0f);
    for (int group = 0; group < Tile::kColumnGroups; group++) {
      const threadgroup float* share =
          row + group * Tile::kRows * Tile::kKeys + j * kMatrixDim + at.column;
      sum += *reinterpret_cast<const threadgroup float2*>(share);
    }
    scores[j].thread_elements()[0] = sum.x;
    scores[j].thread_elements()[1] = sum.y;
  }
}

template <typename Tile>
inline void store_share(
    thread Matrix (&scores)[Tile::kKeys / kMatrixDim], threadgroup float* row, LaneMap at) {
#pragma clang loop unroll(full)
  for (int j = 0; j < Tile::kKeys / kMatrixDim; j++) {
    threadgroup float* share = row + j * kMatrixDim + at.column;
    *reinterpret_cast<threadgroup float2*>(share) =
        float2(scores[j].thread_elements()[0], scores[j].thread_elements()[1]);
  }
}

// Scales the scores of keys from `first_key` on, and sets those that the lane's row does not see to
// -infinity, if there may be any.
template <int N>
inline void scale_and_mask(
    thread Matrix (&scores)[N],
    constant AttentionParameters& p,
    int first_key,
    KeyRange seen,
    bool masked,
    LaneMap at) {
#pragma clang loop unroll(full)
  for (int j = 0; j < N; j++) {
#pragma clang loop unroll(full)
    for (int e = 0; e < 2; e++) {
      int key = first_key + j * kMatrixDim + at.column + e;
      float score = scaled_score(scores[j].thread_elements()[e], p.scale, p.softcap);
      bool hidden = masked && (key < seen.first || key >= seen.last);
      scores[j].thread_elements()[e] = hidden ? -INFINITY : score;
    }
  }
}

// A row's softmax so far; `sum` is the lane's own share of it.
struct RowState {
  float largest;
  float sum;
};

// Folds scores into the row's state and turns them into weights. Returns what the accumulator is
// multiplied by to be relative to the new largest score.
template <int N>
inline float fold(thread RowState& row, thread Matrix (&scores)[N]) {
  float largest = row.largest;
#pragma clang loop unroll(full)
  for (int j = 0; j < N; j++) {
    largest = metal::max(largest, scores[j].thread_elements()[0]);
    largest = metal::max(largest, scores[j].thread_elements()[1]);
  }
  largest = row_max(largest);
  float base = exponent_base(largest);
  float factor = rescale(row.largest, base);
  float sum = 0.0f;
#pragma clang loop unroll(full)
  for (int j = 0; j < N; j++) {
#pragma clang loop unroll(full)
    for (int e = 0; e < 2; e++) {
      float weight = rescale(scores[j].thread_elements()[e], base);
      scores[j].thread_elements()[e] = weight;
      sum += weight;
    }
  }
  row.largest = largest;
  row.sum = row.sum * factor + sum;
  return factor;
}

template <int N>
inline void multiply(thread Matrix (&matrices)[N], float factor) {
#pragma clang loop unroll(full)
  for (int i = 0; i < N; i++) {
    matrices[i].thread_elements()[0] *= factor;
    matrices[i].thread_elements()[1] *= factor;
  }
}

// The lane's elements of its row, `factor` times, where add_values put them.
template <typename OUT, int N>
inline void write_row(thread Matrix (&sums)[N], device OUT* row, float factor, LaneMap at) {
#pragma clang loop unroll(full)
  for (int i = 0; i < N; i++) {
    float2 pair = float2(sums[i].thread_elements()[0], sums[i].thread_elements()[1]);
    *reinterpret_cast<device metal::vec<OUT, 2>*>(row + output_column(at, i)) =
        metal::vec<OUT, 2>(pair * factor);
  }
}

} // namespace pomona

// Grid: (tiles, K/V heads, splits). Threads: TileSize::kThreads.
template <typename T, int D, int DV>
[[kernel, max_total_threads_per_threadgroup(pomona::TileSize<T, D, DV>::kThreads)]] void prefill(
    constant pomona::AttentionParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* q [[buffer(POMONA_BUFFER_Q)]],
    const device T* k [[buffer(POMONA_BUFFER_K), function_constant(has_new_tokens)]],
    const device T* v [[buffer(POMONA_BUFFER_V), function_constant(has_new_tokens)]],
    const device T* k_cache [[buffer(POMONA_BUFFER_K_CACHE)]],
    const device T* v_cache [[buffer(POMONA_BUFFER_V_CACHE)]],
    const device int* slot_mapping
    [[buffer(POMONA_BUFFER_SLOT_MAPPING), function_constant(has_new_tokens)]],
    const device int* block_tables [[buffer(POMONA_BUFFER_BLOCK_TABLES)]],
    const device int* seq_lens [[buffer(POMONA_BUFFER_SEQ_LENS)]],
    const device int* cu_seqlens_q [[buffer(POMONA_BUFFER_CU_SEQLENS_Q)]],
    const device float* sinks [[buffer(POMONA_BUFFER_SINKS), function_constant(has_sinks)]],
    device T* out [[buffer(POMONA_BUFFER_OUT)]],
    device float* partials [[buffer(POMONA_BUFFER_PARTIALS), function_constant(has_partials)]],
    threadgroup uint4* memory [[threadgroup(0)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using namespace pomona;
  using Tile = TileSize<T, D, DV>;
  threadgroup T* staged = reinterpret_cast<threadgroup T*>(memory);
  threadgroup float* shares =
      reinterpret_cast<threadgroup float*>(memory + Tile::kStagedBytes / 16);

  int tile = group_position.x, kv_head = group_position.y, split = group_position.z;
  int index = find_sequence(p, cu_seqlens_q, tile, Tile::kRows);
  Sequence seq = load_sequence(p, seq_lens, cu_seqlens_q, index);
  TileRows owned = tile_rows(p, cu_seqlens_q, seq, tile, Tile::kRows);
  Splits splits = prefill_splits(p, seq);
  // Somebody writes the zeros of rows without keys.
  if (owned.empty() || split >= metal::max(splits.count, 1)) {
    return;
  }

  // What some row of the tile sees in this split.
  KeyRange keys = keys_of_some(p, seq, owned);
  if (splits.count > 1) {
    KeyRange own = keys_of_split(splits, split);
    keys.first = metal::max(keys.first, own.first);
    keys.last = metal::min(keys.last, own.last);
  }

  LaneMap at = lane_map(lane);
  int column_group = simdgroup % Tile::kColumnGroups;
  int first_tile_row = simdgroup / Tile::kColumnGroups * kMatrixDim;
  int first_row = owned.first + first_tile_row;
  TileRows simdgroup_rows{first_row, metal::min(first_row + kMatrixDim - 1, owned.last)};
  KeyRange seen_by_some = keys_of_some(p, seq, simdgroup_rows);
  KeyRange seen_by_all = keys_of_all(p, seq, simdgroup_rows);

  int tile_row = first_tile_row + at.row;
  bool has_row = owned.first + tile_row <= owned.last;
  int row = metal::min(owned.first + tile_row, owned.last);
  int query = row / p.group;
  int64_t token = seq.first_token + query;
  int head = kv_head * p.group + row % p.group;
  KeyRange seen = keys_of_some(p, seq, TileRows{row, row});

  Matrix queries[Tile::kColumns / kMatrixDim];
  Matrix scores[Tile::kKeys / kMatrixDim];
  Matrix sums[Tile::kColumnsV / kMatrixDim];
  const device T* query_row = q + token * p.q.token + head * p.q.head;
  load_queries<T, Tile::kColumns>(queries, query_row + column_group * Tile::kColumns, has_row, at);
  clear(sums);
  RowState state{-INFINITY, 0.0f};

  // Each thread stages its part of one token's key, and of its value.
  constexpr int parts = Tile::kThreads / Tile::kKeys;
  int staged_key = thread_index / parts;
  int part = thread_index % parts;
  threadgroup T* staged_row = staged + staged_key * Tile::kStride;
  threadgroup float* share_row = shares + tile_row * Tile::kKeys;
  KeyRows<T> rows = key_rows(p, k, v, k_cache, v_cache, slot_mapping, block_tables, index, kv_head);

  for (int first_key = keys.first / Tile::kKeys * Tile::kKeys; first_key < keys.last;
       first_key += Tile::kKeys) {
    int position = first_key + staged_key;
    bool present = position >= keys.first && position < keys.last;
    int64_t block = present ? rows.block_at(p, position) : 0;
    const device T* key = present ? rows.key(p, seq, position, block) : k_cache;
    stage_row<T, D, parts>(staged_row, key, present, part);
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);

    // All lanes agree on this, and so do the simdgroups of the same rows.
    bool used = first_key < seen_by_some.last && first_key + Tile::kKeys > seen_by_some.first;
    if (used) {
      clear(scores);
      add_scores<T, Tile::kColumns, Tile::kKeys, Tile::kStride>(
          scores, queries, staged + column_group * Tile::kColumns, at);
      if (Tile::kColumnGroups > 1) {
        store_share<Tile>(scores, share_row + column_group * Tile::kRows * Tile::kKeys, at);
      }
    }
    if (!values_in_keys) {
      threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      const device T* value = present ? rows.value(p, seq, position, block) : v_cache;
      stage_row<T, DV, parts>(staged_row, value, present, part);
    }
    // Values and shares are there.
    if (!values_in_keys || Tile::kColumnGroups > 1) {
      threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    if (used) {
      if (Tile::kColumnGroups > 1) {
        add_shares<Tile>(scores, share_row, at);
      }
      bool masked = first_key < seen_by_all.first || first_key + Tile::kKeys > seen_by_all.last;
      scale_and_mask(scores, p, first_key, seen, masked, at);
      multiply(sums, fold(state, scores));
      add_values<T, Tile::kColumnsV, Tile::kKeys, Tile::kStride>(
          sums, scores, staged + column_group * Tile::kColumnsV, at);
    }
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }

  float sum = row_sum(state.sum);
  if (!has_row) {
    return;
  }
  if (splits.count > 1) {
    if (has_partials) {
      device float* partial =
          partials + prefill_partial(p, seq, splits, row, kv_head, split) * partial_floats(DV);
      if (column_group == 0 && at.column == 0) {
        partial[0] = state.largest;
        partial[1] = sum;
      }
      write_row(sums, partial + 2 + column_group * Tile::kColumnsV, 1.0f, at);
    }
    return;
  }
  float sink = 0.0f;
  if (has_sinks) {
    sink = sinks[head * p.sinks_stride];
  }
  device T* out_row = out + (token * p.num_q_heads + head) * DV;
  float factor = final_factor(state.largest, sum, sink);
  write_row(sums, out_row + column_group * Tile::kColumnsV, factor, at);
}
