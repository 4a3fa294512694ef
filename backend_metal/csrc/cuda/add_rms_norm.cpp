// The evaluation by CUDA of a sum and its norm: one kernel.
#include "operators/add_rms_norm.h"

#include "cuda/add_rms_norm_buffers.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/row_plan.h"
#include "cuda/rows_of_elements.h"

namespace pomona {

void AddRmsNorm::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  using cuda::pointer;
  auto& encoder = mx::cu::get_command_encoder(stream());
  const auto &a = inputs[0], &b = inputs[1], &weight = inputs[2];
  auto &sum = outputs[0], &normed = outputs[1];
  cuda::allocate(sum, encoder);
  cuda::allocate(normed, encoder);
  int width = a.shape(-1);
  auto block = cuda::plan_norm_block(width, int(a.itemsize()));
  auto grid = cuda::plan_add_rms_norm(cuda::num_rows(a), block);
  cuda::Options options;
  options.aligned = cuda::has_vectors(a) && cuda::has_vectors(b) && cuda::has_vectors(weight);
  for (const auto& in : inputs) {
    encoder.set_input_array(in);
  }
  for (const auto& out : outputs) {
    encoder.set_output_array(out);
  }
  cuda::add_kernel(
      encoder,
      {"cuda/add_rms_norm.cu",
       "add_rms_norm",
       cuda::element_type(a.dtype()),
       {block.threads, block.chunks},
       "AddRmsNorm",
       grid.threads},
      options,
      grid,
      AddRmsNormParameters{
          cuda::element_strides(a),
          cuda::element_strides(b),
          cuda::element_strides(weight).dim,
          cuda::inner_rows(a),
          width,
          epsilon_},
      AddRmsNormBuffers{
          pointer(a), pointer(b), pointer(weight), pointer(sum), pointer(normed)});
}

} // namespace pomona
