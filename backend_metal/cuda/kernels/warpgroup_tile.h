// How the warpgroups of a block share a tile of attention (warpgroup_prefill.cu), decided by head
// dims. C++ and CUDA read it.
#pragma once

#include "attention_tile.h"

namespace pomona {

// Threads that multiply together: four warps of 16 rows.
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;

// Rows in shared memory are cut into panels of 64 elements of 2 bytes: what wgmma reads swizzled.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

// Queries of two pieces of work, where there is room.
inline constexpr int kMostQueryBuffers = 2;

// Tiles of keys, and of values, in shared memory: one is multiplied while another is copied.
inline constexpr int kStages = 2;

// Most registers of a thread for scores, weights and outputs; the rest takes the others.
inline constexpr int kProductRegisters = 176;

// Most shared memory of a block on compute capability 9.0.
inline constexpr int kWarpgroupMemoryBytes = 227 * 1024;

struct WarpgroupTile {
  int rows; // query tokens times query heads of a group
  int keys;
  int consumers; // warpgroups that multiply; one more copies
  int threads;
  // Of a thread, handed from those that copy to those that multiply.
  int producer_registers;
  int consumer_registers;
  bool finder_has_registers; // for sequences, and to copy queries
  int query_bytes; // of one buffer
  int query_buffers; // two where there is room: one's rows are multiplied while another's are copied
  int key_bytes; // of one stage
  int value_bytes;
  int places_bytes; // where the rows of two tiles lie
  int write_stage_bytes; // of one stage of rows on their way to their slots; 0: no room
  int memory_bytes;
};

constexpr int panel_bytes(int rows, int columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns * rows * kPanelRowBytes;
}

// Descriptions of work (prefill_tiles.h): what is next is found while the one before is at work.
inline constexpr int kWorkSlots = 2;
inline constexpr int kWorkBytes = 64;
inline constexpr int kBarrierBytes = 192;

// Keys and values on their way to their slots (warpgroup_writes.h).
inline constexpr int kWriteStages = 3;
inline constexpr int kMostWriteBytes = 24 * 1024;

constexpr WarpgroupTile warpgroup_tile(int head_dim, int head_dim_v, int keys, int query_buffers) {
  WarpgroupTile tile{};
  // Narrow heads have more softmax beside their products, which three share, and need fewer
  // registers. Together it is at most 65,536.
  bool narrow = head_dim <= kPanelColumns && head_dim_v <= kPanelColumns;
  tile.consumers = narrow ? 3 : 2;
  tile.producer_registers = narrow ? 32 : 72;
  tile.finder_has_registers = !narrow;
  tile.consumer_registers = narrow ? 160 : 216;
  tile.rows = tile.consumers * kWarpgroupRows;
  tile.keys = keys;
  tile.threads = (tile.consumers + 1) * kWarpgroupThreads;
  tile.query_bytes = panel_bytes(tile.rows, head_dim);
  tile.query_buffers = query_buffers;
  tile.key_bytes = panel_bytes(keys, head_dim);
  tile.value_bytes = panel_bytes(keys, head_dim_v);
  tile.places_bytes = 2 * keys * 16;
  // With what aligns it to 1,024 bytes.
  tile.memory_bytes = 1024 + query_buffers * tile.query_bytes +
      kStages * (tile.key_bytes + tile.value_bytes) + tile.places_bytes +
      kWorkSlots * kWorkBytes + kBarrierBytes;
  return tile;
}

constexpr WarpgroupTile warpgroup_tile(int head_dim, int head_dim_v) {
  WarpgroupTile tile = warpgroup_tile(head_dim, head_dim_v, 128, 1);
  // A key takes half a register of scores and a quarter of one of weights.
  while (head_dim_v / 2 + tile.keys * 3 / 4 > kProductRegisters ||
         tile.memory_bytes > kWarpgroupMemoryBytes) {
    tile = warpgroup_tile(head_dim, head_dim_v, tile.keys / 2, 1);
  }
  WarpgroupTile two = warpgroup_tile(head_dim, head_dim_v, tile.keys, 2);
  if (two.memory_bytes <= kWarpgroupMemoryBytes) {
    tile = two;
  }
  int left = kWarpgroupMemoryBytes - tile.memory_bytes;
  tile.write_stage_bytes =
      (left < kMostWriteBytes ? left : kMostWriteBytes) / kWriteStages / 1024 * 1024;
  tile.memory_bytes += kWriteStages * tile.write_stage_bytes;
  return tile;
}

// Wider values don't fit into the registers, and wider elements are no business of wgmma's here.
constexpr bool has_warpgroup_tile(int head_dim, int head_dim_v, int itemsize) {
  return head_dim <= 256 && head_dim_v <= 256 && itemsize == 2;
}

} // namespace pomona
