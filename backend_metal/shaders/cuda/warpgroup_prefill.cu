// Attention of sequences with more than one query token, as prefill.cu's, on GPUs whose warpgroups
// multiply (compute capability 9.0): for elements of 2 bytes whose rows are `aligned`.
#include "cuda/prefill_tiles.h"
#include "cuda/warpgroup_attend.h"

namespace pomona {

// Blocks start in the order of the grid: a sequence's last tile, which has the most keys, before the
// others, so that all multiprocessors are done at about the same time; and one section of the K/V
// heads after the other, whose keys and values the cache of the GPU holds together.
//
// Grid: (K/V heads of a section, tiles, sections * splits).
template <typename T, int D, int DV>
inline void warpgroup_prefill(const AttentionParameters& p, const AttentionBuffers& b) {
  Position at = block_position(), size = grid_size();
  int sections = p.num_kv_heads / size.x;
  Position position{size.y - 1 - at.y, at.z % sections * size.x + at.x, at.z / sections};
  attend_tile<warpgroup_tile(D, DV).rows, T, DV>(
      p, b, position, [&](Sequence seq, TileRows owned, KeyRange keys, auto finish) {
        attend_by_warpgroups<T, D, DV>(p, b, seq, position.y, owned, keys, finish);
      });
}

} // namespace pomona
