#include "cuda/launch_plan.h"

#include "cuda/attention_tile.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// A split is several tiles of 64 keys, so that copies of one run while another is multiplied.
constexpr int kMinKeysPerSplit = 256;

// Blocks of 128 threads that keep a multiprocessor busy.
constexpr int kBlocksPerCore = 4;

} // namespace

GpuLaunchPlan plan_launch(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  auto decode = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, true);
  auto prefill = attention_tile(shape.head_dim, shape.head_dim_v, batch.itemsize, false);
  int reduce_threads = kReduceWarps * kWarpThreads;
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
      plan_prefill_splits(
          limits,
          shape,
          batch,
          {prefill.rows,
           prefill.keys,
           prefill.threads,
           prefill.memory_bytes,
           kPrefillReduceRows,
           reduce_threads,
           kBlocksPerCore})};
  if (plan.decode.num_partials > 0) {
    int groups = ceil_div(shape.num_q_heads, kReduceWarps);
    plan.reduce = {groups, batch.num_seqs, 1, reduce_threads, 0};
  }
  return plan;
}

} // namespace pomona::cuda
