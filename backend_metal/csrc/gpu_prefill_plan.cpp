#include "gpu_launch_plan.h"

#include "constants.h"

namespace pomona {

namespace {

constexpr int kTileRows = 32;
constexpr int kPrefillKeyTile = 32;
constexpr int kSimdgroups = 4;

} // namespace

PrefillPlan plan_prefill(const GpuLimits&, const AttentionShape& shape, const GpuBatch& batch) {
  PrefillPlan plan{kTileRows, kPrefillKeyTile, {}};
  // One token is the decode kernel's.
  if (batch.num_tokens < 2 || batch.num_seqs == 0) {
    return plan;
  }
  int64_t rows = int64_t(batch.num_tokens) * shape.group();
  // As first_tile in shaders/paging.h numbers them.
  int tiles = static_cast<int>(rows / plan.tile_rows) + batch.num_seqs;
  plan.grid = {tiles, shape.num_kv_heads, 1, kSimdgroups * kSimdWidth, 0};
  return plan;
}

} // namespace pomona
