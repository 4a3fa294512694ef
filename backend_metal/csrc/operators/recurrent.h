// The operators of recurrent layers. They write the states that they are given, in place; callers
// give these up. Shapes and dtypes have been checked in Python (recurrent/operators.py).
#pragma once

#include <optional>
#include <vector>

#include "operators/primitives.h"

namespace pomona {

// int32 each: read_slots and write_slots [num_seqs], cu_seqlens_q [num_seqs + 1].
struct StateMetadata {
  mx::array read_slots;
  mx::array write_slots;
  mx::array cu_seqlens_q;
};

// Inputs: x [num_tokens, channels], weight float32 [kernel, channels], states [num_slots,
// kernel - 1, channels], read_slots, write_slots, cu_seqlens_q, then bias float32 [channels] if any.
// Outputs: [num_tokens, channels], states.
class CausalConv : public CachePrimitive {
 public:
  using CachePrimitive::CachePrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#ifdef POMONA_GPU_DEVICE
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#endif
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(CausalConv)
};

// Inputs: q and k [num_tokens, num_k_heads, head_dim], v [num_tokens, num_v_heads, head_dim_v], gates
// float32 [num_tokens, num_v_heads] or [.., head_dim], or if they are rates [num_v_heads, head_dim],
// betas float32 [num_tokens, num_v_heads], states float32 [num_slots, num_v_heads, head_dim_v, head_dim], read_slots, write_slots,
// cu_seqlens_q. Outputs: [num_tokens, num_v_heads, head_dim_v], states.
class LinearAttention : public CachePrimitive {
 public:
  LinearAttention(mx::Stream stream, bool delta_rule, bool gates_are_rates)
      : CachePrimitive(stream), delta_rule_(delta_rule), gates_are_rates_(gates_are_rates) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#ifdef POMONA_GPU_DEVICE
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
#endif
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(LinearAttention)

 private:
  bool delta_rule_;
  bool gates_are_rates_;
};

std::vector<mx::array> causal_conv(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const mx::array& states,
    const StateMetadata& metadata,
    mx::Stream stream);

std::vector<mx::array> linear_attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const mx::array& gates,
    const mx::array& betas,
    const mx::array& states,
    const StateMetadata& metadata,
    bool delta_rule,
    bool gates_are_rates,
    mx::Stream stream);

} // namespace pomona
