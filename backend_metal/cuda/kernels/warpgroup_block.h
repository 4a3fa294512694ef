// What the warps of a block share that attends by warpgroups (warpgroup_attend.h): memory, barriers, and which work
// is being done.
//
// Shared memory (warpgroup_tile.h): buffers of queries; stages of keys; stages of values; where rows lie;
// descriptions of work; barriers; rows on their way to their slots. All but the last four in panels
// (warpgroup_intrinsics.h).
#pragma once

#include "warpgroup_intrinsics.h"
#include "warpgroup_tile.h"
#include "warpgroup_work.h"

namespace pomona {

// A pair for each description of work, each buffer of queries and each stage of keys and of values: it is
// filled, and it is free. Rows on their way to their slots are filled and stored by the same warp.
struct Barriers {
  Barrier full_work[kWorkSlots];
  Barrier free_work[kWorkSlots];
  Barrier wanted_work; // soon nothing will be left to copy
  Barrier full_queries[kMostQueryBuffers];
  Barrier free_queries[kMostQueryBuffers];
  Barrier full_keys[kStages];
  Barrier free_keys[kStages];
  Barrier full_values[kStages];
  Barrier free_values[kStages];
  Barrier full_writes[kWriteStages];
};

static_assert(sizeof(Barriers) <= kBarrierBytes);

// The block's shared memory and constants.
template <typename T, int D, int DV>
struct WarpgroupBlock {
  static constexpr WarpgroupTile size = warpgroup_tile(D, DV);
  static constexpr int rows = size.rows;
  static constexpr int keys = size.keys;
  static constexpr int consumers = size.consumers;
  static constexpr int copying_warps = 2; // of keys and values
  static constexpr int multiplying_warps = consumers * kWarpgroupThreads / kWarpThreads;
  // Wide values take several products, each of whole panels.
  static constexpr int part_columns = DV <= 128 ? DV : (DV % 128 == 0 ? 128 : kPanelColumns);
  static constexpr int value_parts = DV / part_columns;
  static_assert(sizeof(TileWork) <= kWorkBytes);
  static_assert(
      D % 16 == 0 && DV % part_columns == 0 && keys % 64 == 0, "as products and copies go");

  unsigned char* memory = panel_memory();

  unsigned char* queries(int work, int first_row) const {
    return memory + work % size.query_buffers * size.query_bytes + first_row * kPanelRowBytes;
  }
  unsigned char* stage_keys(int stage) const {
    return memory + size.query_buffers * size.query_bytes + stage * size.key_bytes;
  }
  unsigned char* stage_values(int stage) const {
    return stage_keys(kStages) + stage * size.value_bytes;
  }
  KeyPlace<T>* places(int tile) const {
    return reinterpret_cast<KeyPlace<T>*>(stage_values(kStages)) + tile % 2 * keys;
  }
  unsigned* work_words(int index) const {
    unsigned char* first = stage_values(kStages) + size.places_bytes;
    return reinterpret_cast<unsigned*>(first + index % kWorkSlots * kWorkBytes);
  }
  Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(
        stage_values(kStages) + size.places_bytes + kWorkSlots * kWorkBytes);
  }
  unsigned char* staged_writes() const {
    return reinterpret_cast<unsigned char*>(&barriers()) + kBarrierBytes;
  }
};

// Phases of a stage's barriers follow the tiles that a block folds, counted over all of its work.
inline int stage_of(unsigned tile) {
  return tile % kStages;
}
inline int parity_of(unsigned tile) {
  return tile / kStages % 2;
}

// Of a warpgroup's turn to multiply, by number; 0 is the block's.
inline int turn_barrier(int consumer) {
  return 1 + consumer;
}

// As all of a warp know, the compiler, too.
inline int warp_index() {
  return largest_of_warp(thread_index() / kWarpThreads);
}
inline int lane_index() {
  return thread_index() % kWarpThreads;
}

// The piece of work with this number, by a whole warp. One of its lanes reads each word: then the compiler
// knows that all have the same.
template <typename Block>
inline TileWork await_work(const Block& block, int index) {
  Barriers& barriers = block.barriers();
  wait(barriers.full_work[index % kWorkSlots], index / kWorkSlots % 2);
  TileWork work;
  const unsigned* from = block.work_words(index);
  auto* to = reinterpret_cast<unsigned*>(&work);
#pragma unroll
  for (int i = 0; i < int(sizeof(TileWork) / sizeof(unsigned)); i++) {
    to[i] = shuffle(from[i], 0);
  }
  // Each lane for what it has read itself, which tools that look for races can follow.
  arrive(barriers.free_work[index % kWorkSlots]);
  return work;
}

// Warpgroups that have rows.
inline int active_consumers(TileRows owned) {
  return (owned.last - owned.first) / kWarpgroupRows + 1;
}

// The tiles of keys that a block folds.
struct KeyTiles {
  KeyRange keys;
  int first; // key of the first tile
  int count;
};

inline KeyTiles key_tiles(KeyRange keys, int tile_keys) {
  int first = keys.first / tile_keys * tile_keys;
  int count = keys.last > keys.first ? (keys.last - first + tile_keys - 1) / tile_keys : 0;
  return {keys, first, count};
}

} // namespace pomona
