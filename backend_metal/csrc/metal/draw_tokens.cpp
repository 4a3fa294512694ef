// The evaluation by Metal of draws: two dispatches, or four where rows leave tokens out.
#include <mlx/allocator.h>
#include <mlx/backend/metal/device.h>

#include "common/bindings.h"
#include "gpu/draw_tokens.h"
#include "metal/pipelines.h"
#include "metal/rows.h"
#include "operators/draw_tokens.h"

namespace pomona {

void DrawTokens::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto &out = outputs[0], &bests = outputs[1], &candidates = outputs[2], &tallies = outputs[3];
  check_contiguous(inputs);
  auto a = draw_arrays(inputs);
  auto parameters = parameters_of(a);
  auto plan = plan_draw(out.shape(0), parameters, cuts_);
  out.set_data(mx::allocator::malloc(out.nbytes()));
  metal::allocate(bests, plan.best_words);
  metal::allocate(candidates, plan.num_candidates);
  metal::allocate(tallies, plan.tally_words);
  if (out.size() == 0) {
    return;
  }
  auto& device = mx::metal::device(stream().device);
  auto& encoder = mx::metal::get_command_encoder(stream());
  // Empty ones have no buffer.
  auto bind = [&](const mx::array& in, int slot) {
    encoder.set_input_array(in.size() > 0 ? in : a.options, slot);
  };
  auto dispatch = [&](const char* function, const GpuGrid& grid, auto bind_own) {
    metal::Kernel kernel{"sampling/draw.metal", function, metal::metal_type(a.logits.dtype())};
    encoder.set_compute_pipeline_state(metal::pipeline(device, kernel, {}));
    encoder.set_bytes(parameters, POMONA_BUFFER_PARAMETERS);
    encoder.set_input_array(a.logits, POMONA_BUFFER_LOGITS);
    encoder.set_input_array(a.options, POMONA_BUFFER_DRAW_OPTIONS);
    bind(a.masks, POMONA_BUFFER_MASKS);
    bind(a.counts, POMONA_BUFFER_COUNTS);
    bind(a.bias_ids, POMONA_BUFFER_BIAS_IDS);
    bind(a.biases, POMONA_BUFFER_BIASES);
    bind_own();
    encoder.dispatch_threadgroups(
        MTL::Size(grid.x, grid.y, grid.z), MTL::Size(grid.threads, 1, 1));
  };
  dispatch("draw_chunks", plan.chunks, [&] {
    encoder.set_output_array(bests, POMONA_BUFFER_BESTS);
    encoder.set_output_array(tallies, POMONA_BUFFER_TALLIES);
  });
  if (!plan.slices.empty()) {
    dispatch("draw_weights", plan.slices, [&] {
      encoder.set_input_array(bests, POMONA_BUFFER_BESTS);
      encoder.set_output_array(tallies, POMONA_BUFFER_TALLIES);
    });
    dispatch("draw_slices", plan.slices, [&] {
      encoder.set_output_array(bests, POMONA_BUFFER_BESTS);
      encoder.set_output_array(candidates, POMONA_BUFFER_CANDIDATES);
      encoder.set_output_array(tallies, POMONA_BUFFER_TALLIES);
    });
  }
  dispatch("draw_rows", plan.rows, [&] {
    encoder.set_input_array(bests, POMONA_BUFFER_BESTS);
    encoder.set_input_array(candidates, POMONA_BUFFER_CANDIDATES);
    encoder.set_input_array(tallies, POMONA_BUFFER_TALLIES);
    encoder.set_output_array(out, POMONA_BUFFER_OUT);
  });
}

} // namespace pomona
