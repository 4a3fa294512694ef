#include "cuda/csrc/fill_in_tokens.h"

#include <memory>
#include <stdexcept>

#include "common/constants.h"
#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/kernels/fill_in_tokens_buffers.h"
#include "common/parameters.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

std::vector<mx::Shape> FillInTokens::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

bool FillInTokens::is_equivalent(const mx::Primitive&) const {
  return true;
}

mx::array fill_in_tokens(const mx::array& token_ids, const mx::array& drawn, mx::Stream stream) {
  for (const auto& ids : {token_ids, drawn}) {
    if (ids.dtype() != mx::int32 || ids.ndim() != 1) {
      throw std::invalid_argument("token_ids and drawn must be int32 of one dimension");
    }
  }
  return mx::array(
      token_ids.shape(),
      mx::int32,
      std::make_shared<FillInTokens>(stream),
      {token_ids, drawn});
}

void FillInTokens::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  const auto &token_ids = inputs[0], &drawn = inputs[1];
  allocate(out, encoder);
  if (out.size() == 0) {
    return;
  }
  int num_tokens = token_ids.shape(0);
  GpuGrid grid{ceil_div(num_tokens, kFillInThreads), 1, 1, kFillInThreads, 0};
  encoder.set_input_array(token_ids);
  encoder.set_input_array(drawn);
  encoder.set_output_array(out);
  add_kernel(
      encoder,
      {"fill_in_tokens.cu", "fill_in_tokens", "int", {}, "FillInTokens", grid.threads},
      {},
      grid,
      FillInTokensParameters{token_ids.strides(0), drawn.strides(0), num_tokens},
      FillInTokensBuffers{pointer<int>(token_ids), pointer<int>(drawn), pointer<int>(out)});
}

} // namespace pomona::cuda
