#include <algorithm>

#include "gpu/launch_plan.h"
#include "plan_arithmetic.h"
#include "prefill_tile.h"
#include "splits.h"

namespace pomona {

namespace {

// Threadgroups that a core should have: an Apple core has registers for about 4 of 128 threads, and
// multiplies at full rate while one of them loads.
constexpr int kThreadgroupsPerCore = 4;

// Splits of one tile are at least this long. Its partial state of 32 rows costs 8 bytes a row and
// dimension, written and read, against 4 bytes a key and dimension for K and V in 16 bits: 6%.
constexpr int kMinKeysPerSplit = 1024;
constexpr int kMinSplits = 4;
constexpr int kMaxSplits = 16;

// Keys that a sequence of few rows may see.
int64_t most_keys(const PrefillPlan& plan, const AttentionShape& shape, const GpuBatch& batch) {
  int64_t keys = batch.max_context;
  if (shape.window > 0 && shape.window < keys) {
    // The last query's window, and what the first one sees before that. Wherever that starts, it
    // touches at most one split more than its length asks for.
    int64_t last_query = plan.max_split_rows / shape.group() - 1;
    keys = shape.window + last_query + plan.keys_per_split - 1;
  }
  return keys;
}

} // namespace

PrefillPlan plan_prefill_splits(
    const GpuLimits& limits,
    const AttentionShape& shape,
    const GpuBatch& batch,
    const PrefillBlock& tile) {
  PrefillPlan plan{};
  plan.tile_rows = tile.rows;
  plan.key_tile = tile.keys;
  // Only the device and the model decide which sequences have splits, and where those end.
  int wanted = ceil_div(int64_t(limits.num_cores) * tile.blocks_per_core, shape.num_kv_heads);
  plan.max_split_rows = ceil_div(wanted, 2) * tile.rows;
  plan.keys_per_split = kMinKeysPerSplit;
  plan.max_splits = std::clamp(power_of_two_from(wanted), kMinSplits, kMaxSplits);

  // One token is the decode kernel's.
  if (batch.num_tokens < 2 || batch.num_seqs == 0 || batch.decodes) {
    return plan;
  }
  plan.num_splits = 1;
  // No more tokens than sequences: decode alone, unless some have none, which no scheduler makes.
  // Splits would only launch threadgroups that return at once.
  bool decode_alone = batch.num_seqs > 1 && batch.num_tokens <= batch.num_seqs;
  int64_t rows = int64_t(batch.num_tokens) * shape.group();
  // One sequence alone has all of the rows.
  bool has_few_rows = batch.num_seqs > 1 || rows <= plan.max_split_rows;
  if (!decode_alone && has_few_rows && 2 * shape.group() <= plan.max_split_rows) {
    plan.num_splits = std::clamp(
        ceil_div(most_keys(plan, shape, batch), plan.keys_per_split), 1, plan.max_splits);
  }
  // As first_tile in shaders/paging.h numbers them.
  auto tiles_of = [&](int tile_rows) {
    return static_cast<int>(rows / tile_rows) + batch.num_seqs;
  };
  plan.grid = {
      tiles_of(tile.rows),
      shape.num_kv_heads,
      plan.num_splits,
      tile.threads,
      tile.memory_bytes};
  if (plan.num_splits > 1) {
    // As prefill_partial in shaders/prefill_splits.h lays them out.
    int64_t split_rows = std::min(rows, int64_t(batch.num_seqs) * plan.max_split_rows);
    plan.num_partials = split_rows * shape.num_kv_heads * plan.num_splits *
        partial_floats(shape.head_dim_v);
    plan.reduce = {
        tiles_of(tile.reduce_rows), shape.num_kv_heads, 1, tile.reduce_threads, 0};
  }
  return plan;
}

PrefillPlan plan_prefill(
    const GpuLimits& limits, const AttentionShape& shape, const GpuBatch& batch) {
  PrefillTile tile = prefill_tile(shape.head_dim, shape.head_dim_v, batch.itemsize);
  return plan_prefill_splits(
      limits,
      shape,
      batch,
      {tile.rows,
       tile.keys,
       tile.threads,
       tile.memory_bytes,
       tile.rows,
       kPrefillReduceThreads,
       kThreadgroupsPerCore});
}

} // namespace pomona
