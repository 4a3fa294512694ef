#include "cuda/csrc/silu_product.h"

#include <memory>
#include <stdexcept>

#include "cuda/csrc/few_rows_product.h"
#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/csrc/row_plan.h"
#include "cuda/csrc/rows_of_elements.h"
#include "cuda/kernels/silu_product_buffers.h"

namespace pomona::cuda {

std::vector<mx::Shape> SiluProduct::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

bool SiluProduct::is_equivalent(const mx::Primitive&) const {
  return true;
}

mx::array silu_product(const mx::array& gate, const mx::array& up, mx::Stream stream) {
  auto dtype = gate.dtype();
  if (gate.shape() != up.shape() || dtype != up.dtype()) {
    throw std::invalid_argument("gate and up must have one shape and dtype");
  }
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    throw std::invalid_argument("gate and up must be float32, float16 or bfloat16");
  }
  if (gate.ndim() == 0) {
    throw std::invalid_argument("gate and up must have a dimension");
  }
  if (auto gated = gated_few_rows_product(gate, up, stream)) {
    return *gated;
  }
  if (gate.ndim() > 3) {
    // As of experts. These are views, of the halves of one product as well.
    auto rows = [&](const mx::array& in) { return mx::flatten(in, 0, -2, stream); };
    return mx::reshape(silu_product(rows(gate), rows(up), stream), gate.shape(), stream);
  }
  return mx::array(gate.shape(), dtype, std::make_shared<SiluProduct>(stream), {gate, up});
}

void SiluProduct::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  const auto &gate = inputs[0], &up = inputs[1];
  allocate(out, encoder);
  if (out.size() == 0) {
    return;
  }
  int width = gate.shape(-1);
  int blocks_per_row = silu_blocks_per_row(width, int(gate.itemsize()));
  auto grid = plan_silu_product(num_rows(gate), blocks_per_row);
  Options options;
  options.aligned = has_vectors(gate) && has_vectors(up);
  encoder.set_input_array(gate);
  encoder.set_input_array(up);
  encoder.set_output_array(out);
  add_kernel(
      encoder,
      {"silu_product.cu",
       "silu_product",
       element_type(gate.dtype()),
       {},
       "SiluProduct",
       grid.threads},
      options,
      grid,
      SiluProductParameters{
          element_strides(gate),
          element_strides(up),
          inner_rows(gate),
          width,
          blocks_per_row},
      SiluProductBuffers{pointer(gate), pointer(up), pointer(out)});
}

} // namespace pomona::cuda
