// Attention of sequences with more than one query token, in tiles of rows.
//
// A block owns a tile of consecutive rows of one sequence and K/V head, so that a key is loaded
// once for all the heads that share it; a warp owns 16 of the rows, and of wide values a half or a
// quarter of the columns. The keys of a sequence with few tiles are cut into splits
// (prefill_splits.h), a block each, whose states go to `prefill_reduce`.
#include "prefill_tiles.h"

namespace pomona {

// Grid: (tiles, K/V heads, splits).
template <typename T, int D, int DV>
inline void prefill(const AttentionParameters& p, const AttentionBuffers& b) {
  constexpr int kRows = Tile<T, D, DV, false>::rows;
  const Position position = block_position();
  const int index = find_sequence_by_warp(p, b.cu_seqlens_q, position.x, kRows);
  const Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
  const TileRows rows = tile_rows(p, b.cu_seqlens_q, seq, position.x, kRows);
  const TileWork work = work_of(p, seq, rows, position.y, position.z);
  if (work.owned.empty()) {
    return;
  }
  attend<T, D, DV, false>(
      p,
      b,
      work.seq,
      work.kv_head,
      work.owned,
      work.keys,
      [] {},
      [] {},
      [&](int row, float largest, float sum) {
        const PartialRow partial = partial_of<DV>(p, b, work, row);
        return end_of_row<T, DV>(p, b, work.seq, work.kv_head, row, largest, sum, partial);
      });
}

} // namespace pomona
