// How keys are cut into splits, each folded by a threadgroup of its own: those of a decode's row, and
// those of a prefill's sequence. C++ and Metal read it. It depends on the row, or the sequence, and
// the device, never on the rest of the batch: so neither does a row's result.
#pragma once

#include "../common/constants.h"

namespace pomona {

struct Splits {
  int first_key, last_key; // [first_key, last_key): all keys that are seen are among them
  int length; // of one split
  int count; // 0 without keys
};

// A row's, with boundaries at multiples of their length.
//
// Splits are `keys_per_split` long, or a multiple of that where more than `max_splits` were needed.
inline Splits row_splits(int first_key, int last_key, int keys_per_split, int max_splits) {
  int num_keys = last_key - first_key;
  if (num_keys <= 0) {
    return Splits{0, 0, keys_per_split, 0};
  }
  int length = keys_per_split;
  // A range that starts within a split touches one more than its length asks for.
  int spare = max_splits > 1 ? max_splits - 1 : 1;
  int most = (num_keys + spare - 1) / spare;
  if (most > length) {
    length = (most + keys_per_split - 1) / keys_per_split * keys_per_split;
  }
  int count = (last_key - 1) / length - first_key / length + 1;
  return Splits{first_key, last_key, length, count};
}

// How many splits a sequence with so many tiles of rows may have. `device_tiles` of them fill the device,
// a tile of each split counted: of more, some would wait for others, and no split would save time.
inline int most_splits(int tiles, int device_tiles, int max_splits) {
  int most = device_tiles / tiles;
  most = most < max_splits ? most : max_splits;
  return most > 1 ? most : 1;
}

// A sequence's, equally long but for the last one. They start at a multiple of kSplitTile, as they
// have to where kernels multiply whole tiles of keys, and `keys_per_split` is one. None is longer than
// that unless more than `max_splits` were needed.
inline Splits even_splits(int first_key, int last_key, int keys_per_split, int max_splits) {
  if (last_key <= first_key) {
    return Splits{0, 0, keys_per_split, 0};
  }
  int start = first_key / kSplitTile * kSplitTile;
  int num_keys = last_key - start;
  int count = (num_keys + keys_per_split - 1) / keys_per_split;
  count = count < max_splits ? count : max_splits;
  int tiles = (num_keys + count * kSplitTile - 1) / (count * kSplitTile);
  int length = tiles * kSplitTile;
  return Splits{start, last_key, length, (num_keys + length - 1) / length};
}

// Floats of one partial state: maximum, sum, accumulator.
inline int partial_floats(int head_dim_v) {
  return 2 + head_dim_v;
}

} // namespace pomona
