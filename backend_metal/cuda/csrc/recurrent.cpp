// The recurrent operators' evaluation by CUDA: one kernel each. The int32 arrays' contents are not
// checked: they are not known yet.
#include "common/constants.h"
#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/kernels/recurrent_buffers.h"
#include "gpu/recurrent_arguments.h"
#include "gpu/recurrent_plan.h"
#include "operators/recurrent.h"
#include "plan_arithmetic.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;
using cuda::pointer;

// Sequences that a thread of the narrow kernel goes over side by side, in steps of so many decodes or more.
constexpr int kNarrowSequences = 4;
constexpr int kManyNarrowDecodes = 8;

void use_arrays(
    mx::cu::CommandEncoder& encoder,
    std::initializer_list<const mx::array*> inputs,
    const mx::array& out,
    const mx::array& states) {
  for (const auto* in : inputs) {
    encoder.set_input_array(*in);
  }
  encoder.set_output_array(out);
  encoder.set_output_array(states);
}

// Whether as many elements of a head as a lane owns may be loaded at once.
bool has_aligned_columns(const mx::array& in) {
  int64_t bytes = kNarrowColumns * in.itemsize();
  auto is_multiple = [&](int dim) {
    return in.shape(dim) == 1 || in.strides(dim) % kNarrowColumns == 0;
  };
  return in.offset() % bytes == 0 && in.strides(2) == 1 && is_multiple(0) && is_multiple(1);
}

} // namespace

void CausalConv::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  cuda::allocate(outputs[0], encoder);
  ConvArrays a = conv_arrays(inputs, outputs);
  if (a.empty()) {
    return;
  }
  GpuGrid grid = plan_causal_conv(a.x.shape(0), a.x.shape(1));
  ConvBuffers buffers{
      pointer(a.x),
      pointer<float>(a.weight),
      a.bias ? pointer<float>(*a.bias) : nullptr,
      pointer(a.states),
      pointer<int>(a.read_slots),
      pointer<int>(a.write_slots),
      pointer<int>(a.cu_seqlens_q),
      pointer(a.out)};
  use_arrays(
      encoder,
      {&a.x,
       &a.weight,
       a.bias ? a.bias : &a.weight,
       &a.read_slots,
       &a.write_slots,
       &a.cu_seqlens_q},
      a.out,
      a.states);
  cuda::add_kernel(
      encoder,
      {"causal_conv.cu",
       "causal_conv",
       cuda::element_type(a.x.dtype()),
       {},
       "Conv",
       grid.threads},
      {},
      grid,
      parameters_of(a),
      buffers);
}

void LinearAttention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  cuda::allocate(outputs[0], encoder);
  LinearAttentionArrays a = linear_attention_arrays(inputs, outputs);
  if (a.empty()) {
    return;
  }
  int num_seqs = a.read_slots.shape(0);
  auto [is_narrow, grid] =
      plan_linear_attention(num_seqs, a.v.shape(1), a.k.shape(2), a.v.shape(2));
  // Long prompts, one after the other, would take one thread as long as all of them together.
  bool many_decodes = a.v.shape(0) == num_seqs && num_seqs >= kManyNarrowDecodes;
  int seqs = is_narrow && many_decodes ? kNarrowSequences : 1;
  grid.z = ceil_div(num_seqs, seqs);
  LinearAttentionBuffers buffers{
      pointer(a.q),
      pointer(a.k),
      pointer(a.v),
      pointer<float>(a.gates),
      pointer<float>(a.betas),
      pointer<float>(a.states),
      pointer<int>(a.read_slots),
      pointer<int>(a.write_slots),
      pointer<int>(a.cu_seqlens_q),
      pointer(a.out)};
  use_arrays(
      encoder,
      {&a.q,
       &a.k,
       &a.v,
       &a.gates,
       &a.betas,
       &a.read_slots,
       &a.write_slots,
       &a.cu_seqlens_q},
      a.out,
      a.states);
  cuda::add_kernel(
      encoder,
      {is_narrow ? "narrow_linear_attention.cu" : "linear_attention.cu",
       is_narrow ? "narrow_linear_attention" : "linear_attention",
       cuda::element_type(a.v.dtype()),
       {a.k.shape(2), is_narrow ? seqs : 0},
       "LinearAttention",
       grid.threads},
      {.aligned = has_aligned_columns(a.q) && has_aligned_columns(a.k)},
      grid,
      parameters_of(a, delta_rule_, gates_are_rates_),
      buffers);
}

} // namespace pomona
