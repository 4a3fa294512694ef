#include "cuda/launch_plan.h"

#include "cuda/attention_tile.h"
#include "cuda/warpgroup_tile.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// A split is several tiles of 64 keys, so that copies of one run while another is multiplied.
constexpr int kMinKeysPerSplit = 256;

// Blocks of 128 threads that keep a multiprocessor busy. One of warpgroups takes all its registers.
constexpr int kBlocksPerCore = 4;

constexpr int kReduceThreads = kReduceWarps * kWarpThreads;

PrefillBlock prefill_block(const AttentionShape& shape, const GpuBatch& batch, bool warpgroups) {
  if (warpgroups) {
    auto tile = warpgroup_tile(shape.head_dim, shape.head_dim_v);
    return {
        tile.rows,
        tile.keys,
        tile.threads,
        tile.memory_bytes,
        kPrefillReduceRows,
        kReduceThreads,
        1};
  }
  auto tile = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, false);
  return {
      tile.rows,
      tile.keys,
      tile.threads,
      tile.memory_bytes,
      kPrefillReduceRows,
      kReduceThreads,
      kBlocksPerCore};
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
  if (plan.decode.num_partials > 0) {
    int groups = ceil_div(shape.num_q_heads, kReduceWarps);
    plan.reduce = {groups, batch.num_seqs, 1, kReduceThreads, 0};
  }
  return plan;
}

} // namespace pomona::cuda
