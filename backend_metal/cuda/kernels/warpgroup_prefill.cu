// Attention of sequences with more than one query token, as prefill.cu's, on GPUs whose warpgroups
// multiply (compute capability 9.0): for elements of 2 bytes whose rows are `aligned`. If
// `writes_new_tokens`, those of all sequences go to their slots, too, of those with one token as well.
#include "warpgroup_attend.h"

namespace pomona {

// Grid: (blocks that run at a time, 1, 1).
template <typename T, int D, int DV>
inline void warpgroup_prefill(const AttentionParameters& p, const AttentionBuffers& b) {
  attend_by_warpgroups<T, D, DV>(p, b);
}

} // namespace pomona
