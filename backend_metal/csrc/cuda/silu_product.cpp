// The evaluation by CUDA of silu(gate) * up: one kernel.
#include "operators/silu_product.h"

#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/row_plan.h"
#include "cuda/rows_of_elements.h"
#include "cuda/silu_product_buffers.h"

namespace pomona {

void SiluProduct::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  using cuda::pointer;
  auto& encoder = mx::cu::get_command_encoder(stream());
  const auto &gate = inputs[0], &up = inputs[1];
  cuda::allocate(out, encoder);
  if (out.size() == 0) {
    return;
  }
  int width = gate.shape(-1);
  int blocks_per_row = cuda::silu_blocks_per_row(width, int(gate.itemsize()));
  auto grid = cuda::plan_silu_product(cuda::num_rows(gate), blocks_per_row);
  cuda::Options options;
  options.aligned = cuda::has_vectors(gate) && cuda::has_vectors(up);
  encoder.set_input_array(gate);
  encoder.set_input_array(up);
  encoder.set_output_array(out);
  cuda::add_kernel(
      encoder,
      {"cuda/silu_product.cu",
       "silu_product",
       cuda::element_type(gate.dtype()),
       {},
       "SiluProduct",
       grid.threads},
      options,
      grid,
      SiluProductParameters{
          cuda::element_strides(gate),
          cuda::element_strides(up),
          cuda::inner_rows(gate),
          width,
          blocks_per_row},
      SiluProductBuffers{pointer(gate), pointer(up), pointer(out)});
}

} // namespace pomona
