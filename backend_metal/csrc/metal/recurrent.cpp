// The recurrent operators' evaluation by Metal: one dispatch each. The int32 arrays' contents are not
// checked: they are not known yet.
#include <mlx/allocator.h>
#include <mlx/backend/metal/device.h>

#include "common/bindings.h"
#include "gpu/recurrent_arguments.h"
#include "gpu/recurrent_plan.h"
#include "metal/pipelines.h"
#include "operators/recurrent.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;

// Written in place. MLX commits a command buffer when the arrays that it has met come to 40 Mi
// elements, and does not count an array whose buffer is bound already: a pool's memory does not wait
// for it.
void bind_states(mx::metal::CommandEncoder& encoder, mx::array& states) {
  auto* buffer = static_cast<const MTL::Buffer*>(states.buffer().ptr());
  encoder.set_buffer(buffer, POMONA_BUFFER_STATES, states.offset());
  encoder.set_output_array(states, POMONA_BUFFER_STATES);
}

template <typename LaunchArrays>
void bind_metadata(mx::metal::CommandEncoder& encoder, const LaunchArrays& a) {
  encoder.set_input_array(a.read_slots, POMONA_BUFFER_READ_SLOTS);
  encoder.set_input_array(a.write_slots, POMONA_BUFFER_WRITE_SLOTS);
  encoder.set_input_array(a.cu_seqlens_q, POMONA_BUFFER_CU_SEQLENS_Q);
}

void dispatch(mx::metal::CommandEncoder& encoder, const GpuGrid& grid) {
  encoder.dispatch_threadgroups(
      MTL::Size(grid.x, grid.y, grid.z), MTL::Size(grid.threads, 1, 1));
}

} // namespace

void CausalConv::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  ConvArrays a = conv_arrays(inputs, outputs);
  if (a.empty()) {
    return;
  }
  auto& device = mx::metal::device(stream().device);
  auto& encoder = mx::metal::get_command_encoder(stream());
  metal::Kernel kernel{"recurrent/causal_conv.metal", "causal_conv", metal::metal_type(a.x.dtype())};
  encoder.set_compute_pipeline_state(metal::pipeline(device, kernel, {}));
  encoder.set_bytes(parameters_of(a), POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(a.x, POMONA_BUFFER_X);
  encoder.set_input_array(a.weight, POMONA_BUFFER_WEIGHT);
  encoder.set_input_array(a.bias ? *a.bias : a.weight, POMONA_BUFFER_BIAS);
  bind_metadata(encoder, a);
  bind_states(encoder, a.states);
  encoder.set_output_array(a.out, POMONA_BUFFER_OUT);
  dispatch(encoder, plan_causal_conv(a.x.shape(0), a.x.shape(1)));
}

void LinearAttention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  LinearAttentionArrays a = linear_attention_arrays(inputs, outputs);
  if (a.empty()) {
    return;
  }
  auto& device = mx::metal::device(stream().device);
  auto& encoder = mx::metal::get_command_encoder(stream());
  auto plan = plan_linear_attention(
      a.read_slots.shape(0), a.v.shape(1), a.k.shape(2), a.v.shape(2));
  metal::Kernel kernel{
      plan.is_narrow ? "recurrent/narrow_linear_attention.metal" : "recurrent/linear_attention.metal",
      plan.is_narrow ? "narrow_linear_attention" : "linear_attention",
      metal::metal_type(a.v.dtype()),
      {a.k.shape(2)}};
  encoder.set_compute_pipeline_state(metal::pipeline(device, kernel, {}));
  encoder.set_bytes(parameters_of(a, delta_rule_, gates_are_rates_), POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(a.q, POMONA_BUFFER_Q);
  encoder.set_input_array(a.k, POMONA_BUFFER_K);
  encoder.set_input_array(a.v, POMONA_BUFFER_V);
  encoder.set_input_array(a.gates, POMONA_BUFFER_GATES);
  encoder.set_input_array(a.betas, POMONA_BUFFER_BETAS);
  bind_metadata(encoder, a);
  bind_states(encoder, a.states);
  encoder.set_output_array(a.out, POMONA_BUFFER_OUT);
  dispatch(encoder, plan.grid);
}

} // namespace pomona
