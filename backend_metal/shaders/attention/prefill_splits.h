// Which keys a prefill threadgroup folds, and where it leaves the states of rows of several splits.
#pragma once

#include "../common/options.h"
#include "paging.h"
#include "../common/parameters.h"
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

// The splits of all of a sequence's rows together: the more tiles they are, the fewer.
inline Splits prefill_splits(constant AttentionParameters& p, Sequence seq) {
  int first = seq.first_key(0, p.window);
  int last = seq.last_key(seq.q_len - 1);
  int tiles = (seq.q_len * p.group + p.tile_rows - 1) / p.tile_rows;
  int most = has_partials ? most_splits(metal::max(tiles, 1), p.device_tiles, p.max_splits) : 1;
  if (most == 1) {
    return Splits{first, last, last, 1};
  }
  return even_splits(first, last, p.keys_per_split, most);
}

// Keys [first, last) of one of several splits.
inline KeyRange keys_of_split(Splits splits, int split) {
  int first = splits.first_key + split * splits.length;
  return KeyRange{first, first + splits.length};
}

// A sequence's partials lie as [rows, K/V heads, splits, partial_floats]. Before them there is room
// for those of the sequences before: of num_splits for each of their rows, or of device_tiles for each
// sequence, which its tiles times its splits are at most.
inline int64_t prefill_partial(
    constant AttentionParameters& p,
    Sequence seq,
    Splits splits,
    int row,
    int kv_head,
    int split) {
  int64_t before = metal::min(
      int64_t(seq.first_token) * p.group * p.num_splits,
      int64_t(seq.index) * p.device_tiles * p.tile_rows);
  return before * p.num_kv_heads + (int64_t(row) * p.num_kv_heads + kv_head) * splits.count + split;
}

} // namespace pomona
