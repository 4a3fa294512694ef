#include "gpu/launch_plan.h"

#include <algorithm>

#include "common/constants.h"
#include "attention/decode_tile.h"
#include "plan_arithmetic.h"
#include "attention/splits.h"

namespace pomona {

namespace {

// Decode threadgroups that a core should have at least: with fewer, requests in flight, a few KB a
// simdgroup, do not cover DRAM's latency.
constexpr int kDecodeThreadgroupsPerCore = 4;

// From this context on, one sequence alone should fill the device.
constexpr int kFullContext = 2048;

// A partial state costs 8 bytes a dimension and row, once written and once read, against 4 bytes a
// dimension and key for K and V in 16 bits: at 128 keys and 4 rows that is 6%.
constexpr int kMinKeysPerSplit = 128;
constexpr int kMinSplits = 4;
constexpr int kMaxSplits = 128;

int64_t multiple_of_16(int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

int64_t decode_bytes(const AttentionShape& shape, const GpuBatch& batch, int row_tiles) {
  return multiple_of_16(std::max(
      decode_query_bytes(shape.head_dim, row_tiles, batch.itemsize),
      decode_merge_bytes(shape.head_dim_v, row_tiles)));
}

// Splits that a row of this batch can have, whatever its length: bounded by the block tables.
int most_splits(const DecodePlan& plan, const AttentionShape& shape, const GpuBatch& batch) {
  int64_t keys = batch.max_context;
  if (shape.window > 0 && shape.window < keys) {
    // Wherever it starts, a window touches at most one split more than its length asks for.
    keys = int64_t(shape.window) + plan.keys_per_split - 1;
  }
  // A row without keys has a threadgroup, too: it writes zeros.
  return std::clamp(ceil_div(keys, plan.keys_per_split), 1, plan.max_splits);
}

} // namespace

bool may_decode(const GpuBatch& batch) {
  bool all_prefill = batch.prefills || (batch.num_seqs == 1 && batch.num_tokens > 1);
  return batch.num_tokens > 0 && batch.num_seqs > 0 && !all_prefill;
}

DecodePlan plan_decode(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  int tiles = ceil_div(shape.group(), kMatrixDim);
  DecodePlan plan{};
  plan.row_tiles = std::min(tiles, kMaxDecodeRowTiles);
  while (plan.row_tiles > 1 &&
         decode_bytes(shape, batch, plan.row_tiles) > limits.threadgroup_memory_bytes) {
    plan.row_tiles--;
  }
  plan.passes = ceil_div(tiles, plan.row_tiles);

  // Only the device and the model decide where splits end: what else is in the batch changes no
  // row's result.
  int threadgroups = shape.num_kv_heads * plan.passes; // of one split
  int wanted = ceil_div(limits.num_cores * kDecodeThreadgroupsPerCore, threadgroups);
  plan.max_splits = std::clamp(power_of_two_from(wanted), kMinSplits, kMaxSplits);
  plan.keys_per_split = std::clamp(kFullContext / plan.max_splits, kMinKeysPerSplit, kKeysPerSplit);

  if (!may_decode(batch)) {
    return plan;
  }
  plan.num_splits = most_splits(plan, shape, batch);
  if (plan.num_splits > 1) {
    plan.num_partials = int64_t(batch.num_seqs) * shape.num_q_heads * plan.num_splits *
        partial_floats(shape.head_dim_v);
  }
  plan.grid = {
      threadgroups,
      plan.num_splits,
      batch.num_seqs,
      decode_threads(shape.head_dim_v, plan.row_tiles),
      decode_bytes(shape, batch, plan.row_tiles)};
  return plan;
}

GpuLaunchPlan plan_gpu_launch(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  GpuLaunchPlan plan{plan_decode(limits, shape, batch), {}, plan_prefill(limits, shape, batch)};
  if (plan.decode.num_partials > 0) {
    int groups = ceil_div(shape.num_q_heads, kReduceRows);
    plan.reduce = {groups, batch.num_seqs, 1, kReduceRows * kSimdWidth, 0};
  }
  return plan;
}

} // namespace pomona
