// Attention of sequences with more than one query token, in tiles of rows.
//
// A block owns a tile of consecutive rows of one sequence and K/V head, so that a key is loaded
// once for all the heads that share it; a warp owns 16 of the rows, and of wide values a half or a
// quarter of the columns. The keys of a sequence with few tiles are cut into splits
// (prefill_splits.h), a block each, whose states go to `prefill_reduce`.
#include "cuda/prefill_tiles.h"

namespace pomona {

// Grid: (tiles, K/V heads, splits).
template <typename T, int D, int DV>
inline void prefill(const AttentionParameters& p, const AttentionBuffers& b) {
  Position position = block_position();
  attend_tile<Tile<T, D, DV, false>::rows, T, DV>(
      p, b, position, [&](Sequence seq, TileRows owned, KeyRange keys, auto finish) {
        attend<T, D, DV, false>(p, b, seq, position.y, owned, keys, [] {}, finish);
      });
}

} // namespace pomona
