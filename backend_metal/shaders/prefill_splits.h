// Which keys a prefill threadgroup folds, and where it leaves the states of rows of several splits.
#pragma once

#include "options.h"
#include "paging.h"
#include "parameters.h"
#include "splits.h"

namespace pomona {

// The rows of one sequence and K/V head that a tile holds: [first, last].
struct TileRows {
  int first, last;

  bool empty() const {
    return last < first;
  }
};

inline TileRows any_tile_rows(
    constant AttentionParameters& p,
    const device int* cu_seqlens_q,
    Sequence seq,
    int tile,
    int rows) {
  int first = (tile - first_tile(p, cu_seqlens_q, seq.index, rows)) * rows;
  return TileRows{first, metal::min(first + rows, seq.q_len * p.group) - 1};
}

// A sequence with one query token has none: it is the decode kernel's.
inline TileRows tile_rows(
    constant AttentionParameters& p,
    const device int* cu_seqlens_q,
    Sequence seq,
    int tile,
    int rows) {
  if (seq.q_len > 1) {
    return any_tile_rows(p, cu_seqlens_q, seq, tile, rows);
  }
  return TileRows{0, -1};
}

// Keys [first, last).
struct KeyRange {
  int first, last;
};

// Seen by some of the rows; nothing for no rows.
inline KeyRange keys_of_some(constant AttentionParameters& p, Sequence seq, TileRows rows) {
  if (rows.empty()) {
    return KeyRange{0, 0};
  }
  return KeyRange{seq.first_key(rows.first / p.group, p.window), seq.last_key(rows.last / p.group)};
}

// Seen by each of the rows.
inline KeyRange keys_of_all(constant AttentionParameters& p, Sequence seq, TileRows rows) {
  return KeyRange{seq.first_key(rows.last / p.group, p.window), seq.last_key(rows.first / p.group)};
}

// The splits of all of a sequence's rows together: a long chunk has one.
inline Splits prefill_splits(constant AttentionParameters& p, Sequence seq) {
  int first = seq.first_key(0, p.window);
  int last = seq.last_key(seq.q_len - 1);
  if (!has_partials || seq.q_len * p.group > p.max_split_rows) {
    return Splits{first, last, last, 1};
  }
  return row_splits(first, last, p.keys_per_split, p.max_splits, p.keys_per_split);
}

// Partials lie as [rows, K/V heads, splits, partial_floats]. Rows of sequences with splits neither
// overlap nor take more room than all rows of the batch, or max_split_rows for each sequence.
inline int64_t prefill_partial(
    constant AttentionParameters& p, Sequence seq, int row, int kv_head, int split) {
  int64_t first = metal::min(
      int64_t(seq.first_token) * p.group, int64_t(seq.index) * p.max_split_rows);
  return ((first + row) * p.num_kv_heads + kv_head) * p.num_splits + split;
}

} // namespace pomona
