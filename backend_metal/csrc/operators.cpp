#include "operators.h"

#include <stdexcept>

namespace pomona {

void check_cache_strides(const std::string& name, const mx::array& cache) {
  bool has_memory = cache.status() != mx::array::Status::unscheduled;
  if (has_memory && cache.strides(-1) != 1 && cache.shape(-1) > 1) {
    throw std::invalid_argument(
        name + " must have a contiguous last dimension, not one of stride " +
        std::to_string(cache.strides(-1)));
  }
}

std::vector<mx::array> reshape_and_cache(
    const mx::array& k,
    const mx::array& v,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& slot_mapping,
    mx::Stream stream) {
  return mx::array::make_arrays(
      {k_cache.shape(), v_cache.shape()},
      {k_cache.dtype(), v_cache.dtype()},
      std::make_shared<ReshapeAndCache>(stream),
      {k, v, k_cache, v_cache, slot_mapping});
}

mx::array paged_attention(
    const mx::array& q,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& block_tables,
    const mx::array& seq_lens,
    const mx::array& cu_seqlens_q,
    const AttentionOptions& options,
    const std::optional<mx::array>& sinks,
    mx::Stream stream) {
  std::vector<mx::array> inputs{q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q};
  if (sinks) {
    inputs.push_back(*sinks);
  }
  return mx::array(
      {q.shape(0), q.shape(1), v_cache.shape(3)},
      q.dtype(),
      std::make_shared<PagedAttention>(stream, options),
      std::move(inputs));
}

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
    mx::Stream stream) {
  std::vector<mx::array> inputs{
      q, k, v, k_cache, v_cache, slot_mapping, block_tables, seq_lens, cu_seqlens_q};
  if (sinks) {
    inputs.push_back(*sinks);
  }
  return mx::array::make_arrays(
      {{q.shape(0), q.shape(1), v_cache.shape(3)}, k_cache.shape(), v_cache.shape()},
      {q.dtype(), k_cache.dtype(), v_cache.dtype()},
      std::make_shared<ScatterPagedAttention>(stream, options),
      inputs);
}

mx::array copy_blocks(
    const mx::array& cache,
    const mx::array& sources,
    const mx::array& destinations,
    mx::Stream stream) {
  return mx::array(
      cache.shape(),
      cache.dtype(),
      std::make_shared<CopyBlocks>(stream),
      {cache, sources, destinations});
}

} // namespace pomona
