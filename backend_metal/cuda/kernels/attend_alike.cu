// Attention whose result for a row depends on its own sequence alone: whether that has one query token or
// many, they are computed in one way.
//
// A block owns a tile of up to 16 consecutive rows of one sequence and K/V head, and all of its keys, which
// its warps share as they do in decode.cu. Where keys are cut, and who folds which, is counted from where
// the block table begins; other rows of the tile change nothing, as attend.h says.
#include "prefill_tiles.h"

namespace pomona {

// Grid: (tiles, K/V heads, 1).
template <typename T, int D, int DV>
inline void attend_alike(const AttentionParameters& p, const AttentionBuffers& b) {
  constexpr int kRows = Tile<T, D, DV, true>::rows;
  const int tile = block_position().x, kv_head = block_position().y;
  const int index = find_sequence_by_warp(p, b.cu_seqlens_q, tile, kRows);
  const Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
  const TileRows owned = any_tile_rows(p, b.cu_seqlens_q, seq, tile, kRows);
  if (owned.empty()) {
    return;
  }
  attend<T, D, DV, true>(
      p,
      b,
      seq,
      kv_head,
      owned,
      keys_of_some(p, seq, owned),
      [] {},
      [] {},
      [&](int row, float largest, float sum) {
        const PartialRow none{nullptr, nullptr};
        return end_of_row<T, DV>(p, b, seq, kv_head, row, largest, sum, none);
      });
}

} // namespace pomona
