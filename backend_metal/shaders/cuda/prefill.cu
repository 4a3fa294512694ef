// Attention of sequences with more than one query token, in tiles of rows.
//
// A block owns a tile of consecutive rows of one sequence and K/V head, so that a key is loaded
// once for all the heads that share it; a warp owns 16 of the rows, and of wide values a half or a
// quarter of the columns. The keys of a sequence with few rows are cut into splits
// (prefill_splits.h), a block each, whose states go to `prefill_reduce`.
#include "cuda/attend.h"
#include "splits.h"

namespace pomona {

// Grid: (tiles, K/V heads, splits).
template <typename T, int D, int DV>
inline void prefill(const AttentionParameters& p, const AttentionBuffers& b) {
  constexpr int tile_size = Tile<T, D, DV, false>::rows;
  Position position = block_position();
  int tile = position.x, kv_head = position.y, split = position.z;
  int index = find_sequence(p, b.cu_seqlens_q, tile, tile_size);
  Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
  TileRows owned = tile_rows(p, b.cu_seqlens_q, seq, tile, tile_size);
  Splits splits = prefill_splits(p, seq);
  // Somebody writes the zeros of rows without keys.
  if (owned.empty() || split >= metal::max(splits.count, 1)) {
    return;
  }
  // What some row of the tile sees in this split.
  KeyRange keys = keys_of_some(p, seq, owned);
  if (splits.count > 1) {
    int start = (splits.first_key / splits.length + split) * splits.length;
    keys.first = metal::max(keys.first, start);
    keys.last = metal::min(keys.last, start + splits.length);
  }
  attend<T, D, DV, false>(
      p,
      b,
      seq,
      kv_head,
      owned,
      keys,
      [&](int row, int r, const auto& state, float sum, int first_column, int lane) {
        float* partial = nullptr;
        if (has_partials && splits.count > 1) {
          partial =
              b.partials + prefill_partial(p, seq, row, kv_head, split) * partial_floats(DV);
        }
        finish_row<T, DV>(
            p, b, seq, kv_head, row, r, state, sum, first_column, lane, partial);
      });
}

} // namespace pomona
