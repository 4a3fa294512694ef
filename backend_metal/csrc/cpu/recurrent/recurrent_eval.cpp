// CPU evaluation of the recurrent layers' primitives, as eval.cpp is of attention's.
#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include "cpu/arrays/contiguous.h"
#include "cpu/arrays/element_type.h"
#include "cpu/launch/metadata_checks.h"
#include "cpu/recurrent/recurrent.h"
#include "operators/recurrent.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;
using Encoder = mx::cpu::CommandEncoder;

template <typename T>
const T* data_of(const mx::array& in, Encoder& encoder) {
  return row_contiguous(in, encoder).data<T>();
}

// `metadata`: read_slots, write_slots, cu_seqlens_q.
cpu::StateSlots slots_of(const mx::array* metadata, Encoder& encoder) {
  return {
      static_cast<int>(metadata[0].size()),
      data_of<int32_t>(metadata[0], encoder),
      data_of<int32_t>(metadata[1], encoder),
      data_of<int32_t>(metadata[2], encoder)};
}

cpu::Rows rows_of(const mx::array& in, Encoder& encoder) {
  bool whole_rows = in.strides(2) == 1 || in.size() == 0;
  mx::array rows = whole_rows ? in : packed(in, encoder);
  return {const_cast<mx::array&>(rows).data<void>(), rows.strides(0), rows.strides(1)};
}

// The output that is `states` after the operator has run.
void share(const mx::array& states, mx::array& out) {
  if (!states.flags().row_contiguous) {
    throw std::invalid_argument("states must be contiguous");
  }
  out.copy_shared_buffer(states);
}

} // namespace

void CausalConv::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  share(inputs[2], outputs[1]);
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  bool whole_rows = inputs[0].strides(1) == 1 || inputs[0].size() == 0;
  mx::array x = whole_rows ? inputs[0] : packed(inputs[0], encoder);
  cpu::ConvArguments a{};
  a.type = element_type(x.dtype());
  a.channels = x.shape(1);
  a.kernel = inputs[1].shape(0);
  a.x = x.data<void>();
  a.x_stride = x.strides(0);
  a.weight = data_of<float>(inputs[1], encoder);
  a.bias = inputs.size() > 6 ? data_of<float>(inputs[6], encoder) : nullptr;
  a.states = outputs[1].data<void>();
  a.out = outputs[0].data<void>();
  a.slots = slots_of(&inputs[3], encoder);
  encoder.dispatch([a, num_tokens = x.shape(0), num_slots = inputs[2].shape(0)]() {
    cpu::check_states(a.slots, num_tokens, num_slots);
    cpu::causal_conv(a, cpu::ThreadPool::shared());
  });
}

void LinearAttention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  share(inputs[5], outputs[1]);
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  cpu::LinearAttentionArguments a{};
  a.type = element_type(inputs[2].dtype());
  a.num_k_heads = inputs[1].shape(1);
  a.num_v_heads = inputs[2].shape(1);
  a.head_dim = inputs[1].shape(2);
  a.head_dim_v = inputs[2].shape(2);
  a.delta_rule = delta_rule_;
  a.channel_gates = gates_are_rates_ || inputs[3].ndim() == 3;
  a.gates_are_rates = gates_are_rates_;
  a.q = rows_of(inputs[0], encoder);
  a.k = rows_of(inputs[1], encoder);
  a.v = rows_of(inputs[2], encoder);
  a.gates = data_of<float>(inputs[3], encoder);
  a.betas = data_of<float>(inputs[4], encoder);
  a.states = outputs[1].data<float>();
  a.out = outputs[0].data<void>();
  a.slots = slots_of(&inputs[6], encoder);
  encoder.dispatch([a, num_tokens = inputs[2].shape(0), num_slots = inputs[5].shape(0)]() {
    cpu::check_states(a.slots, num_tokens, num_slots);
    cpu::linear_attention(a, cpu::ThreadPool::shared());
  });
}

} // namespace pomona
