// Builds graph nodes. Shapes, dtypes and options have been checked in Python, with one set of texts
// for every path (attention/checks.py); strides, which Python cannot see, are checked here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operators/primitives.h"

namespace pomona {

std::vector<mx::array> reshape_and_cache(
    const mx::array& k,
    const mx::array& v,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& slot_mapping,
    mx::Stream stream);

mx::array paged_attention(
    const mx::array& q,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& block_tables,
    const mx::array& seq_lens,
    const mx::array& cu_seqlens_q,
    const AttentionOptions& options,
    const std::optional<mx::array>& sinks,
    mx::Stream stream);

std::vector<mx::array> scatter_paged_attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& slot_mapping,
    const mx::array& block_tables,
    const mx::array& seq_lens,
    const mx::array& cu_seqlens_q,
    const AttentionOptions& options,
    const std::optional<mx::array>& sinks,
    mx::Stream stream);

// Raises std::invalid_argument unless the last stride is 1. An array without memory yet passes, and
// is checked again when it is evaluated.
void check_cache_strides(const std::string& name, const mx::array& cache);

} // namespace pomona
