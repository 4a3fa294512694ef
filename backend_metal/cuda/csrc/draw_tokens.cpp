// The evaluation by CUDA of draws: two kernels, or four where rows leave tokens out.
#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/csrc/rows_of_elements.h"
#include "cuda/kernels/draw_buffers.h"
#include "gpu/draw_tokens.h"
#include "operators/draw_tokens.h"

namespace pomona {

namespace {

using cuda::pointer;

mx::array workspace(int words, mx::cu::CommandEncoder& encoder) {
  mx::array memory({words}, mx::int32, nullptr, {});
  cuda::allocate(memory, encoder);
  encoder.add_temporary(memory);
  return memory;
}

// Whether every row's halves, whose tokens are pairs, are whole vectors.
bool has_vector_halves(const mx::array& logits) {
  return cuda::has_vectors(logits) &&
      logits.shape(1) * int64_t(logits.itemsize()) % (2 * cuda::kVectorBytes) == 0;
}

} // namespace

void DrawTokens::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  auto& out = outputs[0];
  cuda::allocate_on_host(out);
  if (out.size() == 0) {
    return;
  }
  check_contiguous(inputs);
  auto a = draw_arrays(inputs);
  auto parameters = parameters_of(a);
  auto plan = plan_draw(out.shape(0), parameters, cuts_);
  cuda::Options options;
  options.aligned = has_vector_halves(a.logits);
  if (options.aligned) {
    // Of a chunk.
    plan.chunks.threadgroup_memory_bytes += 2 * kDrawPairs * int64_t(a.logits.itemsize());
  }
  auto bests = workspace(plan.best_words, encoder);
  auto candidates = workspace(plan.num_candidates, encoder);
  auto tallies = workspace(plan.tally_words, encoder);
  DrawBuffers buffers{
      pointer(a.logits),
      pointer<DrawOptions>(a.options),
      pointer<unsigned>(a.masks),
      pointer<int>(a.counts),
      pointer<int>(a.bias_ids),
      pointer<float>(a.biases),
      pointer<DrawBest>(bests),
      pointer<int>(candidates),
      pointer<RowTally<unsigned>>(tallies),
      pointer<int>(out)};
  auto add = [&](const char* file, const char* function, const GpuGrid& grid, auto... written) {
    for (const auto& in : inputs) {
      encoder.set_input_array(in);
    }
    (encoder.set_output_array(*written), ...);
    cuda::add_kernel(
        encoder,
        {file,
         function,
         cuda::element_type(a.logits.dtype()),
         {},
         "Draw",
         grid.threads},
        options,
        grid,
        parameters,
        buffers);
  };
  add("draw_chunks.cu", "draw_chunks", plan.chunks, &bests, &tallies);
  if (!plan.slices.empty()) {
    add("draw.cu", "draw_weights", plan.slices, &bests, &tallies);
    add("draw.cu", "draw_slices", plan.slices, &bests, &candidates, &tallies);
  }
  add("draw.cu", "draw_rows", plan.rows, &bests, &candidates, &tallies, &out);
}

} // namespace pomona
