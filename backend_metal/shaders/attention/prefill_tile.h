// The size of a prefill tile, decided by head dims and the width of an element. C++ and Metal read
// it.
#pragma once

#include "../common/constants.h"

namespace pomona {

struct PrefillTile {
  int rows;
  int keys;
  int column_groups; // simdgroups that share the columns of 8 rows
  int threads;
  int stride; // elements from one staged key to the next
  int staged_bytes; // of keys, or of values: a multiple of 16
  int memory_bytes; // and of the column groups' shares of the scores: a multiple of 16
};

// Most threadgroup memory: two threadgroups fit into the 60 KB of an M1's core, and two of 256
// threads fill its registers.
POMONA_CONSTANT int kPrefillMemory = 24 * 1024;

// Most columns of queries and outputs that a simdgroup holds in float32: 92 of a thread's 128
// registers. Beyond these, both head dims are multiples of 32, and are halved or quartered.
POMONA_CONSTANT int kMaxPrefillColumns = 256 + 112;

// Threads that fold the partial states of a tile's rows, a simdgroup a row.
POMONA_CONSTANT int kPrefillReduceThreads = 8 * kSimdWidth;

constexpr PrefillTile prefill_tile(int head_dim, int head_dim_v, int itemsize) {
  PrefillTile tile{};
  int columns = head_dim + head_dim_v;
  tile.column_groups = columns > 512 ? 4 : (columns > kMaxPrefillColumns ? 2 : 1);
  // More rows would load K and V more rarely; but neighbouring tiles walk the same keys at the same
  // time and find them in the GPU's cache, and more than 8 simdgroups would be hard to place.
  tile.rows = tile.column_groups > 2 ? 16 : 32;
  tile.threads = tile.rows / kMatrixDim * tile.column_groups * kSimdWidth;
  // 16 bytes more than a row keep rows aligned, and spread what the lanes of a simdgroup read at
  // once evenly over the banks.
  tile.stride = (head_dim > head_dim_v ? head_dim : head_dim_v) + 16 / itemsize;
  // The more keys, the fewer barriers and rescaled outputs.
  for (tile.keys = 32;; tile.keys /= 2) {
    tile.staged_bytes = tile.keys * tile.stride * itemsize;
    tile.memory_bytes = tile.staged_bytes;
    if (tile.column_groups > 1) {
      tile.memory_bytes += tile.column_groups * tile.rows * tile.keys * 4;
    }
    if (tile.memory_bytes <= kPrefillMemory || tile.keys == kMatrixDim) {
      return tile;
    }
  }
}

} // namespace pomona
