// The operators as MLX primitives. They write the caches that they are given, in place: each
// returned cache shares its input's buffer, whoever else holds it, and the graph orders readers of
// the returned arrays. Callers give up the arrays that they pass in.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

namespace pomona {

namespace mx = mlx::core;

struct AttentionOptions {
  float scale;
  int window; // 0: none
  float softcap; // 0: none
  // Where a device has such a kernel: a query's result does not depend on how many there are beside it in its
  // sequence.
  bool one_kernel = false;
  // On a GPU: each sequence has one token, or each has several, which lengths on the device do not tell
  // who launches.
  bool decodes = false;
  bool prefills = false;

  bool operator==(const AttentionOptions&) const = default;
};

// Whether what runs on this stream is evaluated by Metal.
bool is_metal(mx::Stream stream);

// Where it is, arrays of no elements follow the operator's own outputs: memory for kernels to work
// in, which gets its size when the primitive is evaluated. As an output, MLX keeps it until the GPU
// is done with it.
constexpr int kScatterWorkspaces = 1; // of the caches' dtype: packed rows
constexpr int kAttentionWorkspaces = 2; // another, of float32: partial states

// What all of them refuse: transformations, and devices that have no kernels here.
class CachePrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes) override;
  std::vector<mx::array> jvp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& tangents,
      const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs) override;
};

// Inputs: k, v, k_cache, v_cache, slot_mapping. Outputs: k_cache, v_cache.
class ReshapeAndCache : public CachePrimitive {
 public:
  using CachePrimitive::CachePrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#ifdef POMONA_GPU_DEVICE
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#endif
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(ReshapeAndCache)
};

// Inputs: q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q, then sinks if any.
// Output: [num_tokens, num_q_heads, head_dim_v].
class PagedAttention : public CachePrimitive {
 public:
  PagedAttention(mx::Stream stream, AttentionOptions options)
      : CachePrimitive(stream), options_(options) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#ifdef POMONA_GPU_DEVICE
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#endif
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(PagedAttention)

 private:
  AttentionOptions options_;
};

// Inputs: q, k, v, k_cache, v_cache, slot_mapping, block_tables, seq_lens, cu_seqlens_q, then sinks
// if any. Outputs: [num_tokens, num_q_heads, head_dim_v], k_cache, v_cache.
class ScatterPagedAttention : public CachePrimitive {
 public:
  ScatterPagedAttention(mx::Stream stream, AttentionOptions options)
      : CachePrimitive(stream), options_(options) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#ifdef POMONA_GPU_DEVICE
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#endif
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(ScatterPagedAttention)

 private:
  AttentionOptions options_;
};

} // namespace pomona
