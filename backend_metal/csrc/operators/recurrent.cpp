#include "operators/recurrent.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;

Arrays make_outputs(
    std::shared_ptr<mx::Primitive> primitive, Arrays inputs, mx::Dtype out, mx::Dtype states) {
  auto shapes = primitive->output_shapes(inputs);
  return mx::array::make_arrays(
      std::move(shapes), {out, states}, std::move(primitive), std::move(inputs));
}

} // namespace

std::vector<mx::Shape> CausalConv::output_shapes(const Arrays& inputs) {
  return {inputs[0].shape(), inputs[2].shape()};
}

bool CausalConv::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> LinearAttention::output_shapes(const Arrays& inputs) {
  return {inputs[2].shape(), inputs[5].shape()};
}

bool LinearAttention::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const LinearAttention&>(other);
  return delta_rule_ == o.delta_rule_ && gates_are_rates_ == o.gates_are_rates_;
}

Arrays causal_conv(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const mx::array& states,
    const StateMetadata& metadata,
    mx::Stream stream) {
  Arrays inputs{
      x,
      weight,
      states,
      metadata.read_slots,
      metadata.write_slots,
      metadata.cu_seqlens_q};
  if (bias) {
    inputs.push_back(*bias);
  }
  return make_outputs(
      std::make_shared<CausalConv>(stream), std::move(inputs), x.dtype(), states.dtype());
}

Arrays linear_attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const mx::array& gates,
    const mx::array& betas,
    const mx::array& states,
    const StateMetadata& metadata,
    bool delta_rule,
    bool gates_are_rates,
    mx::Stream stream) {
  return make_outputs(
      std::make_shared<LinearAttention>(stream, delta_rule, gates_are_rates),
      {q,
       k,
       v,
       gates,
       betas,
       states,
       metadata.read_slots,
       metadata.write_slots,
       metadata.cu_seqlens_q},
      v.dtype(),
      states.dtype());
}

} // namespace pomona
