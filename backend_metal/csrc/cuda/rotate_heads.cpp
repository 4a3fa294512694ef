// The evaluation by CUDA of the operator that rotates heads: one kernel.
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/rotate_heads_buffers.h"
#include "gpu/rotate_heads.h"

namespace pomona {

namespace {

using cuda::pointer;

template <typename T = void>
T* pointer_if(const mx::array* array) {
  return array ? pointer<T>(*array) : nullptr;
}

} // namespace

void RotateHeads::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  cuda::allocate(outputs[0], encoder);
  cuda::allocate(outputs[1], encoder);
  auto a = rotate_heads_arrays(inputs, outputs, options_);
  if (a.empty()) {
    return;
  }
  auto parameters = parameters_of(a, options_);
  RotateHeadsBuffers buffers{
      pointer(a.q),
      pointer(a.k),
      pointer<int>(a.positions),
      pointer_if(a.q_weight),
      pointer_if(a.k_weight),
      pointer_if<float>(a.frequencies),
      pointer(a.q_out),
      pointer(a.k_out)};
  for (const auto& in : inputs) {
    encoder.set_input_array(in);
  }
  encoder.set_output_array(a.q_out);
  encoder.set_output_array(a.k_out);
  GpuGrid grid = plan_rotate_heads(parameters);
  cuda::add_kernel(
      encoder,
      {"cuda/rotate_heads.cu",
       "rotate_heads",
       cuda::element_type(a.q.dtype()),
       {rotary_pairs(parameters.head_dim)},
       "RotateHeads",
       grid.threads},
      {},
      grid,
      parameters,
      buffers);
}

} // namespace pomona
