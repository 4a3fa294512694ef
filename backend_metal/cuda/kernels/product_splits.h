// The end of a product whose depth is shared out among blocks: a tile's sums, over all splits, in their
// order.
#pragma once

#include "intrinsics.h"

namespace pomona {

// Where a cluster has the splits, its last block gets the others' sums in its shared memory: `received`
// [num_splits - 1, SUMS], which nothing else uses. All have met before.
template <int SUMS, int THREADS, typename Sum, typename Store>
inline void join_in_cluster(float* received, int split, int num_splits, Sum sum_of, Store store) {
  const int last = num_splits - 1;
  if (split < last) {
    for (int place = thread_index(); place < SUMS; place += THREADS) {
      store_to_block(last, received + split * SUMS + place, sum_of(place));
    }
  }
  meet_cluster();
  if (split < last) {
    return;
  }
  for (int place = thread_index(); place < SUMS; place += THREADS) {
    float sum = 0.0f;
    for (int other = 0; other < last; other++) {
      sum += received[other * SUMS + place];
    }
    store(place, sum + sum_of(place));
  }
}

// Elsewhere each block leaves its sums in memory, and the one that comes last adds them up.
// `partials` [num_splits, SUMS] and `counter`, zero before and after, are the tile's.
// SUM(place): the block's own. STORE(place, sum): of all.
template <int SUMS, int THREADS, typename Sum, typename Store>
inline void join_splits(
    float* partials, unsigned* counter, int split, int num_splits, Sum sum_of, Store store) {
  for (int place = thread_index(); place < SUMS; place += THREADS) {
    partials[split * SUMS + place] = sum_of(place);
  }
  if (!is_last_block(counter, num_splits)) {
    return;
  }
  for (int place = thread_index(); place < SUMS; place += THREADS) {
    float sum = 0.0f;
    for (int other = 0; other < num_splits; other++) {
      sum += load_from_blocks(partials + other * SUMS + place);
    }
    store(place, sum);
  }
}

} // namespace pomona
