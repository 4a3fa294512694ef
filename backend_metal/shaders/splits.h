// How a row's keys are cut into splits, each folded by a threadgroup of its own. C++ and Metal read
// it. It depends on the row and the device, never on the rest of the batch: so neither does a
// row's result.
#pragma once

namespace pomona {

struct Splits {
  int first_key, last_key; // [first_key, last_key): the keys that the row sees
  int length; // of one split; boundaries at its multiples
  int count; // 0 without keys
};

// Splits are at most `keys_per_split` long, or a multiple of that where more than `max_splits` were
// needed. A row that sees its first key has them of one length, a multiple of `tile_keys`, but for the
// last.
inline Splits row_splits(
    int first_key, int last_key, int keys_per_split, int max_splits, int tile_keys) {
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
  if (first_key == 0) {
    int num_splits = (num_keys + length - 1) / length;
    int even = (num_keys + num_splits - 1) / num_splits;
    length = (even + tile_keys - 1) / tile_keys * tile_keys;
  }
  int count = (last_key - 1) / length - first_key / length + 1;
  return Splits{first_key, last_key, length, count};
}

// Floats of one partial state: maximum, sum, accumulator.
inline int partial_floats(int head_dim_v) {
  return 2 + head_dim_v;
}

} // namespace pomona
