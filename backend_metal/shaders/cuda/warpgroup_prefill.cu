// Attention of sequences with more than one query token, as prefill.cu's, on GPUs whose warpgroups
// multiply (compute capability 9.0): for elements of 2 bytes whose rows are `aligned`.
#include "cuda/prefill_tiles.h"
#include "cuda/warpgroup_attend.h"

namespace pomona {

// Grid: (tiles, K/V heads, splits).
template <typename T, int D, int DV>
inline void warpgroup_prefill(const AttentionParameters& p, const AttentionBuffers& b) {
  Position position = block_position();
  // A sequence's last tile has the most keys, and is started first: so all multiprocessors are done
  // at about the same time.
  position.x = grid_size().x - 1 - position.x;
  attend_tile<warpgroup_tile(D, DV).rows, T, DV>(
      p, b, position, [&](Sequence seq, TileRows owned, KeyRange keys, auto finish) {
        attend_by_warpgroups<T, D, DV>(p, b, seq, position.y, owned, keys, finish);
      });
}

} // namespace pomona
