// What a block of prefill does, however it multiplies: which rows and keys are its own, and where
// their results go.
#pragma once

#include "cuda/attend.h"
#include "splits.h"

namespace pomona {

// As find_sequence, by a warp: each lane looks at one of 32 sequences, rather than one after another
// at as many as have to be looked at.
inline int find_sequence_by_warp(
    const AttentionParameters& p, const int* cu_seqlens_q, int tile, int tile_rows) {
  int low = 0, high = p.num_seqs - 1;
  while (low < high) {
    int step = (high - low + kWarpThreads - 1) / kWarpThreads;
    int seq = low + (thread_index() % kWarpThreads + 1) * step;
    bool is_before = seq <= high && first_tile(p, cu_seqlens_q, seq, tile_rows) <= tile;
    low += count_bits(vote(is_before)) * step;
    high = metal::min(high, low + step - 1);
  }
  return low;
}

// Of a block at `position` in the grid (tiles, K/V heads, splits), with tiles of ROWS rows. Has
// `attend(sequence, rows, keys, finish)` fold keys into rows, if there are any.
template <int ROWS, typename T, int DV, typename Attend>
inline void attend_tile(
    const AttentionParameters& p, const AttentionBuffers& b, Position position, Attend attend) {
  int tile = position.x, kv_head = position.y, split = position.z;
  int index = find_sequence_by_warp(p, b.cu_seqlens_q, tile, ROWS);
  Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
  TileRows owned = tile_rows(p, b.cu_seqlens_q, seq, tile, ROWS);
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
  attend(
      seq,
      owned,
      keys,
      [&](int row, int r, const auto& state, float sum, int first_column, int lane) {
        float* partial = nullptr;
        if (has_partials && splits.count > 1) {
          partial = b.partials +
              prefill_partial(p, seq, splits, row, kv_head, split) * partial_floats(DV);
        }
        finish_row<T, DV>(
            p, b, seq, kv_head, row, r, state, sum, first_column, lane, partial);
      });
}

} // namespace pomona
