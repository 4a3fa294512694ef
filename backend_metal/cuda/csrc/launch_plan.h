// What one attention launch does on an NVIDIA GPU.
#pragma once

#include "gpu/launch_plan.h"

namespace pomona::cuda {

// Splits have keys_per_split or more, and num_splits is the number of those of all rows.
// Partials: [split, query heads of one pass, partial_floats]. Grid: (num_splits, 1, 1).
struct DecodePlan : pomona::DecodePlan {
  bool folds_splits; // by the kernel that decodes, with none after it
};

struct LaunchPlan {
  DecodePlan decode;
  GpuGrid reduce; // folds decode's partials. Grid: (q heads, sequences, 1)
  PrefillPlan prefill;
  int work_heads, work_seqs; // of prefill by warpgroups, whose blocks share out the work
};

// `warpgroups`: prefill is by the kernel of warpgroup_prefill.cu, with its order of blocks as grid.
LaunchPlan plan_launch(
    const GpuLimits& limits,
    const AttentionShape& shape,
    const GpuBatch& batch,
    bool warpgroups);

// Of the kernel of attend_alike.cu, which has no other beside it.
GpuGrid plan_alike(const AttentionShape& shape, const GpuBatch& batch);

} // namespace pomona::cuda
