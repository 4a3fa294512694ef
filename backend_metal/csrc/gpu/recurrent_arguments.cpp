#include "gpu/recurrent_arguments.h"

#include <stdexcept>
#include <string>

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;

// Strides of dimensions with one element are never used, and may be anything.
int64_t stride(const mx::array& in, int dim) {
  return dim < in.ndim() && in.shape(dim) > 1 ? in.strides(dim) : 0;
}

ElementStrides strides_of(const mx::array& in) {
  return {stride(in, 0), stride(in, 1), stride(in, 2)};
}

void check_contiguous(const char* name, const mx::array& in) {
  if (!in.flags().row_contiguous && in.size() > 1) {
    throw std::invalid_argument(std::string(name) + " must be contiguous");
  }
}

// `metadata`: read_slots, write_slots, cu_seqlens_q.
void check_metadata(const mx::array* metadata, const mx::array& states) {
  check_contiguous("read_slots", metadata[0]);
  check_contiguous("write_slots", metadata[1]);
  check_contiguous("cu_seqlens_q", metadata[2]);
  check_contiguous("states", states);
}

} // namespace

ConvArrays conv_arrays(const Arrays& inputs, Arrays& outputs) {
  check_metadata(&inputs[3], inputs[2]);
  check_contiguous("weight", inputs[1]);
  const mx::array* bias = inputs.size() > 6 ? &inputs[6] : nullptr;
  if (bias) {
    check_contiguous("bias", *bias);
  }
  outputs[1].copy_shared_buffer(inputs[2]);
  return {
      inputs[0], inputs[1], bias, inputs[3], inputs[4], inputs[5], outputs[0], outputs[1]};
}

LinearAttentionArrays linear_attention_arrays(const Arrays& inputs, Arrays& outputs) {
  check_metadata(&inputs[6], inputs[5]);
  outputs[1].copy_shared_buffer(inputs[5]);
  return {
      inputs[0],
      inputs[1],
      inputs[2],
      inputs[3],
      inputs[4],
      inputs[6],
      inputs[7],
      inputs[8],
      outputs[0],
      outputs[1]};
}

ConvParameters parameters_of(const ConvArrays& a) {
  ConvParameters p{};
  p.x_token = stride(a.x, 0);
  p.x_channel = stride(a.x, 1);
  p.num_tokens = a.x.shape(0);
  p.num_seqs = a.read_slots.shape(0);
  p.channels = a.x.shape(1);
  p.taps = a.weight.shape(0);
  p.has_bias = a.bias != nullptr;
  return p;
}

LinearAttentionParameters parameters_of(
    const LinearAttentionArrays& a, bool delta_rule, bool gates_are_rates) {
  LinearAttentionParameters p{};
  p.q = strides_of(a.q);
  p.k = strides_of(a.k);
  p.v = strides_of(a.v);
  p.gates = gates_are_rates ? ElementStrides{0, stride(a.gates, 0), stride(a.gates, 1)}
                            : strides_of(a.gates);
  p.betas = {stride(a.betas, 0), stride(a.betas, 1)};
  p.num_seqs = a.read_slots.shape(0);
  p.num_v_heads = a.v.shape(1);
  p.group = a.v.shape(1) / a.k.shape(1);
  p.head_dim_v = a.v.shape(2);
  p.delta_rule = delta_rule;
  p.channel_gates = gates_are_rates || a.gates.ndim() == 3;
  p.gates_are_rates = gates_are_rates;
  return p;
}

} // namespace pomona
