// What a block of prefill does, however it multiplies: which rows and keys are its own, and where
// their results go.
#pragma once

#include "attend.h"
#include "shaders/attention/splits.h"

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

// What is folded at a time: the keys of one split into the rows of one tile.
struct TileWork {
  Sequence seq;
  int kv_head;
  Splits splits; // of the sequence
  int split;
  TileRows owned; // empty where there is nothing to do
  KeyRange keys; // that some row sees in this split
};

// Of rows of a sequence. Without rows where the sequence has fewer splits.
inline TileWork work_of(
    const AttentionParameters& p, Sequence seq, TileRows owned, int kv_head, int split) {
  Splits splits = prefill_splits(p, seq);
  // Somebody writes the zeros of rows without keys.
  if (split >= metal::max(splits.count, 1)) {
    owned = TileRows{0, -1};
  }
  KeyRange keys = keys_of_some(p, seq, owned);
  if (splits.count > 1) {
    KeyRange own = keys_of_split(splits, split);
    keys.first = metal::max(keys.first, own.first);
    keys.last = metal::min(keys.last, own.last);
  }
  return {seq, kv_head, splits, split, owned, keys};
}

// Where the state of a row goes; nowhere where the row is finished here.
template <int DV>
inline PartialRow partial_of(
    const AttentionParameters& p, const AttentionBuffers& b, const TileWork& work, int row) {
  if (!has_partials || work.splits.count <= 1) {
    return {nullptr, nullptr};
  }
  float* first = b.partials +
      prefill_partial(p, work.seq, work.splits, row, work.kv_head, work.split) *
          prefill_state_floats(DV);
  return {first, first + kStateBounds};
}

} // namespace pomona
