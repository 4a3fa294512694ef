#include "gpu_launch_plan.h"

#include <algorithm>

#include "constants.h"
#include "splits.h"

namespace pomona {

namespace {

// Simdgroups of one decode threadgroup. Apple's GPUs have about 208 KB of registers a core, and a
// lane of this kernel needs around 100: 16 simdgroups stay resident, that is four threadgroups,
// and a core still has work while one of them reduces.
constexpr int kDecodeSimdgroups = 4;

// Decode threadgroups that a core should have: with fewer, memory requests in flight (a few KB a
// simdgroup) do not cover DRAM's latency.
constexpr int kThreadgroupsPerCore = 4;

// Bounds of a split. A partial costs 8 bytes a dimension and row, written and read, against 4 bytes
// a dimension and key of K and V in 16 bits: at 128 keys and 4 rows that is 6%.
constexpr int kMinKeysPerSplit = 128;
constexpr int kMinSplits = 4;
constexpr int kMaxSplits = 128;

// From this context on, one sequence alone should fill the device.
constexpr int kFullContext = 2048;

int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

int power_of_two_from(int n) {
  int power = 1;
  while (power < n) {
    power *= 2;
  }
  return power;
}

int64_t multiple_of_16(int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

int64_t query_bytes(const AttentionShape& shape, const GpuBatch& batch, int row_tiles) {
  return int64_t(batch.itemsize) * row_tiles * kMatrixDim * shape.head_dim;
}

} // namespace

DecodePlan plan_decode(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  DecodePlan plan{};
  plan.dim_parts = ceil_div(shape.head_dim_v, kMaxDecodeDims);
  int tiles = ceil_div(shape.group(), kMatrixDim);
  plan.row_tiles = std::min(tiles, kMaxDecodeRowTiles);
  while (query_bytes(shape, batch, plan.row_tiles) > limits.threadgroup_memory_bytes) {
    plan.row_tiles--;
  }
  plan.passes = ceil_div(tiles, plan.row_tiles);
  plan.key_parts = std::max(1, kDecodeSimdgroups / (plan.row_tiles * plan.dim_parts));

  // Only the device and the model decide where splits end.
  int wanted = limits.num_cores * kThreadgroupsPerCore;
  int threadgroups = shape.num_kv_heads * plan.passes; // of one split
  plan.max_splits = std::clamp(
      power_of_two_from(ceil_div(wanted, threadgroups)), kMinSplits, kMaxSplits);
  plan.keys_per_split =
      std::clamp(power_of_two_from(kFullContext / plan.max_splits), kMinKeysPerSplit, kKeysPerSplit);

  int keys = batch.max_context;
  int first = 0;
  if (shape.window > 0 && shape.window < keys) {
    // Wherever it starts, a window touches at most one split more than its length asks for.
    first = plan.keys_per_split - 1;
    keys = shape.window;
  }
  plan.num_splits =
      std::min(ceil_div(int64_t(first) + keys, plan.keys_per_split), plan.max_splits);

  bool all_prefill = batch.num_seqs == 1 && batch.num_tokens > 1;
  if (batch.num_tokens == 0 || batch.num_seqs == 0 || all_prefill) {
    return plan;
  }
  // A row without keys has a threadgroup, too: it writes zeros.
  int splits = std::max(plan.num_splits, 1);
  if (splits > 1) {
    plan.num_partials =
        int64_t(batch.num_seqs) * shape.num_q_heads * splits * partial_floats(shape.head_dim_v);
  }
  // What a merge of key parts writes at once: half of them, each a tile of its dimensions.
  int64_t part_dims = std::min(shape.head_dim_v, kMaxDecodeDims);
  int64_t merge_bytes = int64_t(sizeof(float)) * (plan.key_parts / 2) * plan.row_tiles *
      plan.dim_parts * kMatrixDim * (part_dims + 2);
  plan.grid = {
      threadgroups,
      splits,
      batch.num_seqs,
      plan.key_parts * plan.row_tiles * plan.dim_parts * kSimdWidth,
      multiple_of_16(std::max(query_bytes(shape, batch, plan.row_tiles), merge_bytes))};
  return plan;
}

GpuLaunchPlan plan_gpu_launch(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  GpuLaunchPlan plan{plan_decode(limits, shape, batch), {}, plan_prefill(limits, shape, batch)};
  if (plan.decode.num_partials > 0) {
    plan.reduce = {shape.num_q_heads, batch.num_seqs, 1, kSimdWidth, 0};
  }
  return plan;
}

} // namespace pomona
