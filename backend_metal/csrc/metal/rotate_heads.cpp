// The evaluation by Metal of the operator that rotates heads: one dispatch.
#include <mlx/allocator.h>
#include <mlx/backend/metal/device.h>

#include "common/bindings.h"
#include "common/constants.h"
#include "gpu/rotate_heads.h"
#include "metal/pipelines.h"

namespace pomona {

void RotateHeads::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (auto& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
  auto a = rotate_heads_arrays(inputs, outputs, options_);
  if (a.empty()) {
    return;
  }
  auto& device = mx::metal::device(stream().device);
  auto& encoder = mx::metal::get_command_encoder(stream());
  auto parameters = parameters_of(a, options_);
  GpuGrid grid = plan_rotate_heads(parameters, {1, kManyRotaryRuns, kMostRotaryHeads});
  metal::Kernel kernel{
      "attention/rotate_heads.metal",
      "rotate_heads",
      metal::metal_type(a.q.dtype()),
      {rotary_pairs(parameters.head_dim)}};
  encoder.set_compute_pipeline_state(metal::pipeline(device, kernel, {}));
  encoder.set_bytes(parameters, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(a.q, POMONA_BUFFER_Q);
  encoder.set_input_array(a.k, POMONA_BUFFER_K);
  encoder.set_input_array(a.positions, POMONA_BUFFER_POSITIONS);
  encoder.set_input_array(a.q_weight ? *a.q_weight : a.q, POMONA_BUFFER_Q_WEIGHT);
  encoder.set_input_array(a.k_weight ? *a.k_weight : a.q, POMONA_BUFFER_K_WEIGHT);
  encoder.set_input_array(a.frequencies ? *a.frequencies : a.q, POMONA_BUFFER_FREQUENCIES);
  encoder.set_output_array(a.q_out, POMONA_BUFFER_Q_OUT);
  encoder.set_output_array(a.k_out, POMONA_BUFFER_K_OUT);
  encoder.dispatch_threadgroups(
      MTL::Size(grid.x, grid.y, grid.z), MTL::Size(grid.threads, 1, 1));
}

} // namespace pomona
