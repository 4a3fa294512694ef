#include "cuda/csrc/launch_plan.h"

#include <algorithm>

#include "cuda/csrc/split_counters.h"
#include "cuda/kernels/attention_tile.h"
#include "cuda/kernels/warpgroup_tile.h"
#include "plan_arithmetic.h"
#include "attention/splits.h"

namespace pomona::cuda {

namespace {

// A split is two tiles of 64 keys or more, so that the copies of one run while another is multiplied.
constexpr int kMinKeysPerSplit = 128;

// Splits that a row has on average where not all rows have room at a time: the more, the more evenly the
// work ends.
constexpr int kSplitsOfMany = 3;

// Tokens up to which more splits cost more than the room that they fill.
constexpr int kShortContext = 2048;

// Blocks of 128 threads that keep a multiprocessor busy. One of warpgroups takes all its registers.
constexpr int kBlocksPerCore = 4;

constexpr int kReduceThreads = kReduceWarps * kWarpThreads;

template <typename Tile>
PrefillBlock block_of(const Tile& tile, int head_dim_v, int blocks_per_core) {
  return {
      tile.rows,
      tile.keys,
      tile.threads,
      tile.memory_bytes,
      kPrefillReduceRows,
      kPrefillReduceRows * kWarpThreads,
      blocks_per_core,
      prefill_state_floats(head_dim_v)};
}

PrefillBlock prefill_block(const AttentionShape& shape, const GpuBatch& batch, bool warpgroups) {
  if (warpgroups) {
    return block_of(warpgroup_tile(shape.head_dim, shape.head_dim_v), shape.head_dim_v, 1);
  }
  return block_of(
      attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, false),
      shape.head_dim_v,
      kBlocksPerCore);
}

// Bytes of keys and values that blocks which run at a time should share in the cache of the GPU, a
// third of an H100's: it may keep two copies.
constexpr int64_t kSectionBytes = 16 << 20;

// K/V heads whose blocks run beside each other: the more, the more evenly the work ends.
int section_heads(const AttentionShape& shape, const GpuBatch& batch) {
  int64_t bytes = int64_t(batch.max_context) * (shape.head_dim + shape.head_dim_v) * batch.itemsize;
  int heads = shape.num_kv_heads;
  while (heads > 1 && (heads * bytes > kSectionBytes || shape.num_kv_heads % heads != 0)) {
    heads--;
  }
  return heads;
}

// Likewise, sequences, whose pieces are taken together, those with the most keys first.
int section_seqs(const AttentionShape& shape, const GpuBatch& batch, int heads) {
  int64_t bytes = int64_t(batch.max_context) * (shape.head_dim + shape.head_dim_v) *
      batch.itemsize * heads;
  return std::clamp<int64_t>(kSectionBytes / std::max<int64_t>(bytes, 1), 1, kWarpThreads);
}

// That a row may have, by the block tables.
int most_splits(const AttentionShape& shape, const GpuBatch& batch, int tile_keys) {
  int64_t keys = batch.max_context;
  if (shape.window > 0 && shape.window < keys) {
    keys = int64_t(shape.window) + tile_keys - 1; // wherever it starts
  }
  int tiles = ceil_div(keys, tile_keys);
  return std::max(ceil_div(tiles, ceil_div(kMinKeysPerSplit, tile_keys)), 1);
}

// How often the room for blocks is filled. Where one split of each row leaves a third of it empty or more,
// and two have no room, long rows are cut into more.
int turns_of(
    const AttentionShape& shape, const GpuBatch& batch, int64_t units, int64_t at_a_time) {
  if (units > at_a_time) {
    return ceil_div(kSplitsOfMany * units, at_a_time);
  }
  bool leaves_room = 2 * units > at_a_time && 3 * units <= 2 * at_a_time;
  int context = shape.window > 0 ? std::min(batch.max_context, shape.window) : batch.max_context;
  return leaves_room && context > kShortContext ? 2 : 1;
}

// One block for each split of all rows (cuda/kernels/decode_splits.h): as many as the device has room for
// at a time, or that several times.
DecodePlan plan_decode_blocks(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  auto tile = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, true);
  DecodePlan plan{};
  plan.passes = ceil_div(shape.group(), tile.rows);
  plan.keys_per_split = kMinKeysPerSplit;
  plan.max_splits = kMaxReduceSplits;
  if (!may_decode(batch)) {
    return plan;
  }
  int64_t at_a_time = limits.num_cores *
      std::clamp<int64_t>(limits.threadgroup_memory_bytes / tile.memory_bytes, 1, kDecodeBlocks);
  int64_t units = int64_t(batch.num_seqs) * shape.num_kv_heads * plan.passes;
  int turns = turns_of(shape, batch, units, at_a_time);
  int most = std::min(most_splits(shape, batch, tile.keys), plan.max_splits); // of a row
  plan.num_splits = std::min(turns * at_a_time, units * most);
  if (plan.num_splits > units) {
    // A last block folds its rows one after another.
    plan.folds_splits = std::min(ceil_div(plan.num_splits, units), most) <= kFewSplits &&
        plan.num_splits <= kMostSplitCounters;
    int64_t floats = int64_t(plan.num_splits) * std::min(shape.group(), tile.rows) *
        partial_floats(shape.head_dim_v);
    // Behind them lie those of a prefill.
    plan.num_partials = ceil_div(floats, kStateBounds) * kStateBounds;
  }
  plan.grid = {plan.num_splits, 1, 1, tile.threads, tile.memory_bytes};
  return plan;
}

} // namespace

LaunchPlan plan_launch(
    const GpuLimits& limits,
    const AttentionShape& shape,
    const GpuBatch& batch,
    bool warpgroups) {
  LaunchPlan plan{
      plan_decode_blocks(limits, shape, batch),
      {},
      plan_prefill_splits(limits, shape, batch, prefill_block(shape, batch, warpgroups))};
  if (warpgroups && !plan.prefill.grid.empty()) {
    auto& grid = plan.prefill.grid;
    plan.work_heads = section_heads(shape, batch);
    plan.work_seqs = section_seqs(shape, batch, plan.work_heads);
    int64_t work = int64_t(grid.x) * grid.y * grid.z;
    // A block takes a multiprocessor.
    int blocks = static_cast<int>(std::min<int64_t>(work, limits.num_cores));
    grid = {blocks, 1, 1, grid.threads, grid.threadgroup_memory_bytes};
  }
  if (plan.decode.num_partials > 0 && !plan.decode.folds_splits) {
    plan.reduce = {
        shape.num_q_heads,
        batch.num_seqs,
        1,
        kReduceThreads,
        decode_reduce_bytes(shape.head_dim_v)};
  }
  return plan;
}

GpuGrid plan_alike(const AttentionShape& shape, const GpuBatch& batch) {
  auto tile = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, true);
  int64_t rows = int64_t(batch.num_tokens) * shape.group();
  // As first_tile in shaders/attention/paging.h numbers them.
  int tiles = rows > 0 ? static_cast<int>(rows / tile.rows) + batch.num_seqs : 0;
  return {tiles, shape.num_kv_heads, 1, tile.threads, tile.memory_bytes};
}

} // namespace pomona::cuda
