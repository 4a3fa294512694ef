// How the warps of a block share a tile of attention, decided by head dims and the width of an
// element. C++ and CUDA read it.
#pragma once

namespace pomona {

// Rows and columns of the left operand of a product of matrices: every head dim is a multiple.
inline constexpr int kTileRows = 16;
inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockWarps = 4;

// Most columns of the output that a warp accumulates: 64 registers of a thread.
inline constexpr int kMaxWarpColumns = 128;

// Most shared memory of two tiles of keys and values. With the queries it stays below the 99 KB that
// every GPU from compute capability 8.6 on has, but for head dims of 512 in float32; two blocks fit
// into a multiprocessor of 8.0 and 9.0.
inline constexpr int kStagedBytes = 72 * 1024;

// Blocks of a decode that a multiprocessor has registers for at most head dims.
inline constexpr int kDecodeBlocks = 3;

// Of a state that a split of a prefill leaves: largest score and sum, and from here on outputs, so that
// they fill whole sectors of 32 bytes.
inline constexpr int kStateBounds = 8;

constexpr int prefill_state_floats(int head_dim_v) {
  return kStateBounds + head_dim_v;
}

// Of a block that folds a decode's states, and as many splits as a row may have.
inline constexpr int kReduceWarps = 4;
inline constexpr int kMaxReduceSplits = kReduceWarps * kWarpThreads;

// Its shared memory: weights, largest and sum of each warp, outputs.
constexpr int decode_reduce_bytes(int head_dim_v) {
  return (kMaxReduceSplits + 2 * kReduceWarps + kReduceWarps * head_dim_v) * 4;
}

// Splits whose states are on their way at once where the last block of a decode folds its rows. More than
// that are folded by a block for each row.
inline constexpr int kFewSplits = 8;

// Rows of one that folds a prefill's, a warp each. They share what a block costs: beside long chunks,
// whose rows have one split, most blocks have nothing to fold.
inline constexpr int kPrefillReduceRows = 16;

struct AttentionTile {
  int rows; // query tokens times query heads of a group
  int keys;
  int row_parts; // warps that share the rows, 16 each
  int key_parts; // the keys of a tile
  int dim_parts; // the columns of the output; each scores for itself
  int threads;
  int team_keys; // of a tile, which a team of warps shares
  int team_threads;
  int key_stride; // elements from one staged key, or query, to the next
  int value_stride;
  int memory_bytes;
};

constexpr AttentionTile attention_tile(int head_dim, int head_dim_v, int itemsize, bool decode) {
  AttentionTile tile{};
  // 16 bytes more than a row spread what a warp reads at once over the banks.
  tile.key_stride = head_dim + 16 / itemsize;
  tile.value_stride = head_dim_v + 16 / itemsize;
  int key_bytes = (tile.key_stride + tile.value_stride) * itemsize;
  tile.keys = 64;
  while (tile.keys > 16 && 2 * tile.keys * key_bytes > kStagedBytes) {
    tile.keys /= 2;
  }
  tile.dim_parts = head_dim_v > 2 * kMaxWarpColumns ? 4 : (head_dim_v > kMaxWarpColumns ? 2 : 1);
  tile.row_parts = decode ? 1 : kBlockWarps / tile.dim_parts;
  tile.key_parts = decode ? kBlockWarps / tile.dim_parts : 1;
  if (tile.key_parts > tile.keys / 16) {
    tile.key_parts = tile.keys / 16;
  }
  tile.rows = tile.row_parts * kTileRows;
  tile.threads = tile.row_parts * tile.key_parts * tile.dim_parts * kWarpThreads;
  tile.team_keys = tile.keys / tile.key_parts;
  tile.team_threads = tile.threads / tile.key_parts;
  // Queries, two tiles of keys and of values, and where the rows of two tiles lie.
  tile.memory_bytes = tile.rows * tile.key_stride * itemsize + 2 * tile.keys * (key_bytes + 16);
  return tile;
}

} // namespace pomona
