#include "operators/operators.h"

#include <sstream>
#include <stdexcept>

namespace pomona {

namespace {

// The primitive's outputs, workspaces included.
std::vector<mx::array> make_outputs(
    std::shared_ptr<mx::Primitive> primitive,
    std::vector<mx::array> inputs,
    std::vector<mx::Dtype> dtypes,
    mx::Dtype rows) {
  auto shapes = primitive->output_shapes(inputs);
  for (mx::Dtype dtype : {rows, mx::float32}) {
    if (dtypes.size() < shapes.size()) {
      dtypes.push_back(dtype);
    }
  }
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(primitive), std::move(inputs));
}

} // namespace

void check_cache_strides(const std::string& name, const mx::array& cache) {
  bool has_memory = cache.status() != mx::array::Status::unscheduled;
  if (has_memory && cache.strides(-1) != 1 && cache.shape(-1) > 1) {
    std::ostringstream text;
    text << name << " must have a contiguous last dimension, not one of stride "
         << cache.strides(-1);
    throw std::invalid_argument(text.str());
  }
}

std::vector<mx::array> reshape_and_cache(
    const mx::array& k,
    const mx::array& v,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& slot_mapping,
    mx::Stream stream) {
  return make_outputs(
      std::make_shared<ReshapeAndCache>(stream),
      {k, v, k_cache, v_cache, slot_mapping},
      {k_cache.dtype(), v_cache.dtype()},
      k_cache.dtype());
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
  return make_outputs(
      std::make_shared<PagedAttention>(stream, options),
      std::move(inputs),
      {q.dtype()},
      q.dtype())[0];
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
  return make_outputs(
      std::make_shared<ScatterPagedAttention>(stream, options),
      std::move(inputs),
      {q.dtype(), k_cache.dtype(), v_cache.dtype()},
      q.dtype());
}

} // namespace pomona
