// What one attention launch does on a GPU, decided from the device's limits and from shapes: the
// lengths are in arrays that are not evaluated yet. So grids are upper bounds, and a threadgroup
// that finds nothing to do returns at once.
#pragma once

#include <cstdint>

#include "attention_shape.h"

namespace pomona {

struct GpuLimits {
  int num_cores;
  int64_t threadgroup_memory_bytes;
};

struct GpuBatch {
  int num_tokens;
  int num_seqs;
  int max_context; // what the block tables have room for, in tokens
  int itemsize; // bytes of an element of q
  bool decodes = false; // each sequence is known to have one token
  bool prefills = false; // or several
};

// Whether some sequence may have one query token, as far as shapes tell.
bool may_decode(const GpuBatch& batch);

// Threadgroups of one dispatch; empty when shapes alone show that it has nothing to do.
struct GpuGrid {
  int x, y, z;
  int threads; // of one threadgroup
  int64_t threadgroup_memory_bytes; // a multiple of 16

  bool empty() const {
    return x == 0 || y == 0 || z == 0;
  }
};

// Sequences with one query token. On Metal a threadgroup serves the query heads of one K/V head (up to
// kMaxDecodeRowTiles tiles of 8; `passes` of them for larger groups) over one split.
// Grid: (K/V heads * passes, splits, sequences).
struct DecodePlan {
  int row_tiles; // of one threadgroup
  int passes;
  int keys_per_split;
  int max_splits; // of any row, on this device
  int num_splits; // of any row of this batch
  int64_t num_partials; // floats, [sequence, q head, split, partial_floats]
  GpuGrid grid;
};

// Sequences with more than one query token, in tiles of `tile_rows` rows. The keys of those with few
// tiles are cut into splits, so many that all together occupy the device once: see most_splits in
// shaders/attention/splits.h.
// Grid: (tiles, K/V heads, splits).
struct PrefillPlan {
  int tile_rows;
  int key_tile;
  int device_tiles; // that fill the device for one K/V head, a tile of each split counted
  int keys_per_split;
  int max_splits; // of any sequence, on this device
  int num_splits; // of any sequence of this batch
  int64_t num_partials; // floats, as prefill_partial in shaders/attention/prefill_splits.h lays them out
  GpuGrid grid;
  GpuGrid reduce; // folds partials. Grid: (tiles of reduce_rows, K/V heads, 1)
};

struct GpuLaunchPlan {
  DecodePlan decode;
  GpuGrid reduce; // folds decode's partials. Grid: (q heads / kReduceRows, sequences, 1)
  PrefillPlan prefill;
};

// What a device's kernels make of a block: rows and keys of a tile, threads, memory.
struct PrefillBlock {
  int rows;
  int keys;
  int threads;
  int64_t memory_bytes;
  int reduce_rows;
  int reduce_threads;
  int blocks_per_core; // that keep a core busy
  int state_floats; // that a split leaves of a row
};

// Splits and grid, whatever the device.
PrefillPlan plan_prefill_splits(
    const GpuLimits& limits,
    const AttentionShape& shape,
    const GpuBatch& batch,
    const PrefillBlock& block);

// For Metal.
DecodePlan plan_decode(const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch);
PrefillPlan plan_prefill(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch);
GpuLaunchPlan plan_gpu_launch(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch);

} // namespace pomona
