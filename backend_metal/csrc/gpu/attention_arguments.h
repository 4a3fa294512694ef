// One attention launch: its arrays, and what they tell kernels and the launch plan.
#pragma once

#include <optional>

#include "gpu/launch_plan.h"
#include "gpu/rows.h"
#include "operators/primitives.h"

namespace pomona {

// This step's own keys and values, read by attention, and by whoever writes them to the caches.
struct NewTokens {
  Rows k, v;
  const mx::array& slot_mapping;
  mx::array& k_cache; // the outputs
  mx::array& v_cache;
};

struct AttentionArrays {
  Rows q;
  const std::optional<NewTokens>& new_tokens;
  const mx::array& k_cache;
  const mx::array& v_cache;
  const mx::array& block_tables;
  const mx::array& seq_lens;
  const mx::array& cu_seqlens_q;
  const mx::array* sinks;
  mx::array& out;
  mx::array& partials; // floats that the plan asks for
};

AttentionShape shape_of(const AttentionOptions& options, const AttentionArrays& arrays);
// Tokens that the block tables have room for.
int max_context(const mx::array& block_tables, const mx::array& k_cache);
GpuBatch batch_of(const AttentionOptions& options, const AttentionArrays& arrays);

// Keys and values, new and cached, all start at multiples of 16 bytes.
bool are_aligned(const AttentionArrays& arrays);
bool are_aligned(const NewTokens& tokens);

// Each value is the head of its key.
bool values_are_in_keys(const AttentionArrays& arrays);

// All but what is the plan's.
AttentionParameters parameters_of(const AttentionOptions& options, const AttentionArrays& arrays);
ScatterParameters parameters_of(const NewTokens& tokens);

// `plan` is that of decode or of prefill.
template <typename Plan>
AttentionParameters with_splits(AttentionParameters p, const Plan& plan) {
  p.keys_per_split = plan.keys_per_split;
  p.max_splits = plan.max_splits;
  p.num_splits = plan.num_splits;
  return p;
}

inline AttentionParameters with_splits(AttentionParameters p, const PrefillPlan& plan) {
  p.tile_rows = plan.tile_rows;
  p.device_tiles = plan.device_tiles;
  return with_splits<PrefillPlan>(p, plan);
}

} // namespace pomona
