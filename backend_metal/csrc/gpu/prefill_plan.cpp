#include <algorithm>

#include "common/constants.h"
#include "gpu/launch_plan.h"
#include "plan_arithmetic.h"
#include "attention/prefill_tile.h"
#include "attention/splits.h"

namespace pomona {

namespace {

// Threadgroups that a core should have: an Apple core has registers for about 4 of 128 threads, and
// multiplies at full rate while one of them loads.
constexpr int kPrefillThreadgroupsPerCore = 4;

// A split of one tile is this long, or at least half of that. Its partial state of 32 rows costs 8
// bytes a row and dimension, written and read, against 4 bytes a key and dimension for K and V in 16
// bits: 6%.
constexpr int kKeysPerPrefillSplit = 1024;

// Keys that a sequence of at most so many tokens may see.
int64_t most_keys(const AttentionShape& shape, const GpuBatch& batch, int64_t num_tokens) {
  int64_t keys = batch.max_context;
  if (shape.window > 0) {
    // The last query's window, what the first one sees before that, and what the first split has
    // before that.
    keys = std::min(keys, shape.window + num_tokens - 1 + kSplitTile - 1);
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
  // Only the device and the model decide this; a sequence's own rows and keys decide the rest.
  plan.device_tiles = limits.num_cores * tile.blocks_per_core / shape.num_kv_heads;
  plan.keys_per_split = kKeysPerPrefillSplit;
  // Of a window not longer than a split, a tile of rows sees keys of one or two splits, however many
  // its sequence sees.
  bool short_window = shape.window > 0 && shape.window <= plan.keys_per_split;
  plan.max_splits = short_window ? 1 : kMaxPrefillSplits;

  // One token is the decode kernel's.
  if (batch.num_tokens < 2 || batch.num_seqs == 0 || batch.decodes) {
    return plan;
  }
  plan.num_splits = 1;
  // No more tokens than sequences: decode alone, unless some have none, which no scheduler makes.
  // Splits would only launch threadgroups that return at once.
  bool decode_alone = batch.num_seqs > 1 && batch.num_tokens <= batch.num_seqs;
  int64_t rows = int64_t(batch.num_tokens) * shape.group();
  // One sequence alone has all of the rows; of several, one may have as few as two tokens.
  int64_t fewest_rows = batch.num_seqs > 1 ? 2 * shape.group() : rows;
  int most = most_splits(ceil_div(fewest_rows, tile.rows), plan.device_tiles, plan.max_splits);
  if (!decode_alone && most > 1) {
    // With more tiles than this there is one split.
    int64_t split_rows = int64_t(plan.device_tiles / 2) * tile.rows;
    int64_t num_tokens = std::min<int64_t>(batch.num_tokens, split_rows / shape.group());
    plan.num_splits =
        std::clamp(ceil_div(most_keys(shape, batch, num_tokens), plan.keys_per_split), 1, most);
  }
  // As first_tile in shaders/attention/paging.h numbers them.
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
    // As prefill_partial in shaders/attention/prefill_splits.h lays them out.
    int64_t states = std::min(
        rows * plan.num_splits, int64_t(batch.num_seqs) * plan.device_tiles * tile.rows);
    plan.num_partials = states * shape.num_kv_heads * tile.state_floats;
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
       kPrefillThreadgroupsPerCore,
       partial_floats(shape.head_dim_v)});
}

} // namespace pomona
