#include "cuda/launch_plan.h"

#include <utility>

#include "cuda/attention_tile.h"
#include "cuda/split_counters.h"
#include "cuda/warpgroup_tile.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// A split is several tiles of 64 keys, so that copies of one run while another is multiplied.
constexpr int kMinKeysPerSplit = 256;

// Blocks of 128 threads that keep a multiprocessor busy. One of warpgroups takes all its registers.
constexpr int kBlocksPerCore = 4;

constexpr int kReduceThreads = kReduceWarps * kWarpThreads;

template <typename Tile>
PrefillBlock block_of(const Tile& tile, int blocks_per_core) {
  return {
      tile.rows,
      tile.keys,
      tile.threads,
      tile.memory_bytes,
      kPrefillReduceRows,
      kPrefillReduceRows * kWarpThreads,
      blocks_per_core};
}

PrefillBlock prefill_block(const AttentionShape& shape, const GpuBatch& batch, bool warpgroups) {
  if (warpgroups) {
    return block_of(warpgroup_tile(shape.head_dim, shape.head_dim_v), 1);
  }
  return block_of(
      attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, false), kBlocksPerCore);
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

} // namespace

GpuLaunchPlan plan_launch(
    const GpuLimits& limits,
    const AttentionShape& shape,
    const GpuBatch& batch,
    bool warpgroups) {
  auto decode = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, true);
  GpuLaunchPlan plan{
      plan_decode_splits(
          limits,
          shape,
          batch,
          {ceil_div(shape.group(), decode.rows),
           kMinKeysPerSplit,
           decode.threads,
           decode.memory_bytes}),
      {},
      plan_prefill_splits(limits, shape, batch, prefill_block(shape, batch, warpgroups))};
  if (!plan.decode.grid.empty()) {
    // The last splits, many of which are short, come last: so all end at about the same time.
    std::swap(plan.decode.grid.y, plan.decode.grid.z);
  }
  if (warpgroups && !plan.prefill.grid.empty()) {
    auto& grid = plan.prefill.grid;
    int heads = section_heads(shape, batch);
    grid = {
        heads,
        grid.x,
        shape.num_kv_heads / heads * grid.z,
        grid.threads,
        grid.threadgroup_memory_bytes};
  }
  if (plan.decode.num_partials > 0 && !folds_splits(plan.decode, batch)) {
    plan.reduce = {
        shape.num_q_heads,
        batch.num_seqs,
        1,
        kReduceThreads,
        decode_reduce_bytes(shape.head_dim_v)};
  }
  return plan;
}

bool folds_splits(const DecodePlan& plan, const GpuBatch& batch) {
  int64_t blocks = int64_t(plan.grid.x) * batch.num_seqs; // of one split
  return plan.num_splits > 1 && plan.num_splits <= kFewSplits && blocks <= kMostSplitCounters;
}

GpuGrid plan_alike(const AttentionShape& shape, const GpuBatch& batch) {
  auto tile = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, true);
  int64_t rows = int64_t(batch.num_tokens) * shape.group();
  // As first_tile in shaders/paging.h numbers them.
  int tiles = rows > 0 ? static_cast<int>(rows / tile.rows) + batch.num_seqs : 0;
  return {tiles, shape.num_kv_heads, 1, tile.threads, tile.memory_bytes};
}

} // namespace pomona::cuda
