// Many query rows of one K/V head: two matrix products a tile, with a row in each vector lane.
//
// A task owns up to kMaxTileRows rows (tokens times heads of the group), in blocks of Vectors *
// kLanes. Queries are packed transposed, [dim, row], so that scores come out as [key, row]: the
// softmax then runs down columns, without a reduction across lanes, and the product with the values
// needs no transposed copy either. Keys and values of a tile are widened to float32 once for all of
// the task's rows. Both products keep kPanelRows x Vectors accumulators in registers.
#pragma once

#include "cpu/kernels/attention/key_rows.h"
#include "cpu/kernels/attention/row_block.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

inline int64_t prefill_scratch_floats(const AttentionArguments& a) {
  // The last block may be padded to two vectors; scores also hold one row on its way out.
  int64_t rows = kMaxTileRows + 2 * kLanes;
  int64_t row = int64_t(a.head_dim) + 2 * a.head_dim_v + 6;
  int64_t key = int64_t(a.head_dim) + a.head_dim_v + 2 * kLanes;
  return rows * row + kKeyTile * key + a.head_dim_v;
}

// scores[kPanelRows, rows] of as many keys.
template <int Vectors>
inline void score_panel(
    const float* queries, int head_dim, const float* keys, float* scores) {
  constexpr int kRows = Vectors * kLanes;
  Floats sums[kPanelRows][Vectors] = {};
  for (int d = 0; d < head_dim; d++) {
    Floats q[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) {
      q[j] = load(queries + d * kRows + j * kLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kPanelRows; i++) {
      Floats key = fill(keys[i * head_dim + d]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; j++) {
        sums[i][j] = fma(key, q[j], sums[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPanelRows; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) {
      store(scores + i * kRows + j * kLanes, sums[i][j]);
    }
  }
}

// totals[kPanelRows dims, rows] = totals * kept + values^T weights.
template <int Vectors>
inline void value_panel(
    const float* weights,
    const float* values,
    int head_dim_v,
    int num_keys,
    const Floats* kept,
    float* totals) {
  constexpr int kRows = Vectors * kLanes;
  Floats sums[kPanelRows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < kPanelRows; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) {
      sums[i][j] = load(totals + i * kRows + j * kLanes) * kept[j];
    }
  }
  for (int key = 0; key < num_keys; key++) {
    Floats w[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) {
      w[j] = load(weights + key * kRows + j * kLanes);
    }
    const float* row = values + (int64_t)key * head_dim_v;
#pragma GCC unroll 8
    for (int i = 0; i < kPanelRows; i++) {
      Floats value = fill(row[i]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; j++) {
        sums[i][j] = fma(value, w[j], sums[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPanelRows; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) {
      store(totals + i * kRows + j * kLanes, sums[i][j]);
    }
  }
}

// Softcap, mask and streaming softmax down the columns; `kept` gets the factors of older sums.
template <int Vectors>
inline void weigh_columns(
    const AttentionArguments& a,
    RowBlock<Vectors>& block,
    float* scores,
    int first_key,
    int num_keys,
    bool masked,
    Floats* kept) {
  constexpr int kRows = Vectors * kLanes;
  for (int j = 0; j < Vectors; j++) {
    float* column = scores + j * kLanes;
    if (a.softcap > 0.0f) {
      Floats inverse = fill(1.0f / a.softcap);
      for (int i = 0; i < num_keys; i++) {
        store(column + i * kRows, tanh(load(column + i * kRows) * inverse) * a.softcap);
      }
    }
    if (masked) {
      Ints first = load_as<Ints>(block.first + j * kLanes);
      Ints last = load_as<Ints>(block.last + j * kLanes);
      for (int i = 0; i < num_keys; i++) {
        Ints key = fill_int(first_key + i);
        Ints visible = (key >= first) & (key < last);
        store(column + i * kRows, visible ? load(column + i * kRows) : fill(-kInfinity));
      }
    }
    Floats before = load(block.largest + j * kLanes);
    Floats largest = before;
    for (int i = 0; i < num_keys; i++) {
      largest = max(largest, load(column + i * kRows));
    }
    Floats base = finite_or_zero(largest);
    Floats sum = {};
    for (int i = 0; i < num_keys; i++) {
      Floats weight = exp(load(column + i * kRows) - base);
      store(column + i * kRows, weight);
      sum += weight;
    }
    kept[j] = exp(before - base);
    store(block.largest + j * kLanes, largest);
    store(block.sum + j * kLanes, load(block.sum + j * kLanes) * kept[j] + sum);
  }
}

// The rows of one block against a packed tile of keys that starts at `first`.
template <int Vectors>
inline void attend_block(
    const AttentionArguments& a,
    RowBlock<Vectors>& block,
    const float* keys,
    const float* values,
    int first,
    int num_keys,
    float* scores) {
  constexpr int kRows = RowBlock<Vectors>::kRows;
  int begin = block.least_first > first ? (block.least_first - first) / kPanelRows * kPanelRows : 0;
  int end = block.most_last - first < num_keys ? block.most_last - first : num_keys;
  if (begin >= end) {
    return;
  }
  int padded = (end - begin + kPanelRows - 1) / kPanelRows * kPanelRows;
  for (int i = 0; i < padded; i += kPanelRows) {
    score_panel<Vectors>(
        block.queries, a.head_dim, keys + (begin + i) * a.head_dim, scores + i * kRows);
  }
  bool masked = block.most_first > first + begin || block.least_last < first + end;
  Floats kept[Vectors];
  weigh_columns<Vectors>(a, block, scores, first + begin, end - begin, masked, kept);
  for (int d = 0; d < a.head_dim_v; d += kPanelRows) {
    value_panel<Vectors>(
        scores,
        values + (int64_t)begin * a.head_dim_v + d,
        a.head_dim_v,
        end - begin,
        kept,
        block.values + d * kRows);
  }
}

template <typename T>
inline void widen_rows(const T* const* rows, int num_rows, int dim, float* out) {
  for (int i = 0; i < num_rows; i++) {
    for (int d = 0; d < dim; d += kLanes) {
      store(out + i * dim + d, load(rows[i] + d));
    }
  }
  // A panel may reach past the last row; what it gets there is not used.
  int padded = (num_rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  __builtin_memset(out + num_rows * dim, 0, sizeof(float) * (padded - num_rows) * dim);
}

template <int Vectors, typename T>
inline void prefill_rows(
    const AttentionArguments& a, const Task& task, KeyRange keys, float* memory) {
  using Block = RowBlock<Vectors>;
  constexpr int kRows = Block::kRows;
  int num_blocks = (task.num_rows + kRows - 1) / kRows;
  Block blocks[kMaxTileRows / kRows];
  for (int b = 0; b < num_blocks; b++, memory += Block::floats(a)) {
    blocks[b].lay_out(a, memory);
    load_rows<Vectors, T>(a, task, task.first_row + b * kRows, blocks[b]);
    clear_block<Vectors>(
        a, blocks[b].folded_largest, blocks[b].folded_sum, blocks[b].folded_values);
  }
  float* tile_keys = memory;
  float* tile_values = tile_keys + kKeyTile * a.head_dim;
  float* scores = tile_values + kKeyTile * a.head_dim_v;
  for (int i = 0; i < task.num_splits; i++) {
    int split_start = (task.first_split + i) * kKeysPerSplit;
    int split_end = split_start + kKeysPerSplit;
    split_end = split_end < keys.last ? split_end : keys.last;
    for (int b = 0; b < num_blocks; b++) {
      clear_block<Vectors>(a, blocks[b].largest, blocks[b].sum, blocks[b].values);
    }
    for (int first = split_start > keys.first ? split_start : keys.first; first < split_end;) {
      int tile_end = (first / kKeyTile + 1) * kKeyTile;
      int last = tile_end < split_end ? tile_end : split_end;
      KeyRows<T> rows;
      find_rows(a, task.seq, task.first_head, first, last, rows);
      widen_rows(rows.keys, last - first, a.head_dim, tile_keys);
      widen_rows(rows.values, last - first, a.head_dim_v, tile_values);
      for (int b = 0; b < num_blocks; b++) {
        attend_block<Vectors>(a, blocks[b], tile_keys, tile_values, first, last - first, scores);
      }
      first = last;
    }
    if (task.partial >= 0) {
      float* states = partial_state(a, task.partial + i * task.split_stride);
      store_partials<Vectors>(a, task.num_rows, blocks, states);
      continue;
    }
    for (int b = 0; b < num_blocks; b++) {
      fold_block<Vectors>(a, blocks[b]);
    }
  }
  if (task.partial < 0) {
    write_blocks<Vectors, T>(a, task, blocks, scores);
  }
}

template <typename T>
void prefill_task(const AttentionArguments& a, const Task& task, KeyRange keys, float* memory) {
  if (task.num_rows <= kLanes) {
    prefill_rows<1, T>(a, task, keys, memory);
  } else {
    prefill_rows<2, T>(a, task, keys, memory);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
