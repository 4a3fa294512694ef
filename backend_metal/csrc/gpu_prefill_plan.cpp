#include "gpu_launch_plan.h"

#include "constants.h"
#include "prefill_tile.h"

namespace pomona {

PrefillPlan plan_prefill(const GpuLimits&, const AttentionShape& shape, const GpuBatch& batch) {
  PrefillTile tile = prefill_tile(shape.head_dim, shape.head_dim_v, batch.itemsize);
  PrefillPlan plan{tile.rows, tile.keys, {}};
  // One token is the decode kernel's.
  if (batch.num_tokens < 2 || batch.num_seqs == 0) {
    return plan;
  }
  int64_t rows = int64_t(batch.num_tokens) * shape.group();
  // As first_tile in shaders/paging.h numbers them.
  int tiles = static_cast<int>(rows / plan.tile_rows) + batch.num_seqs;
  plan.grid = {tiles, shape.num_kv_heads, 1, tile.threads, tile.memory_bytes};
  return plan;
}

} // namespace pomona
