// The evaluation of draws on the CPU: a thread a row.
#include <mlx/backend/cpu/encoder.h>

#include <stdexcept>

#include "cpu/arrays/contiguous.h"
#include "cpu/sampling/draw.h"
#include "cpu/kernels/table.h"
#include "cpu/threads/thread_pool.h"
#include "operators/draw_tokens.h"

namespace pomona {

void DrawTokens::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (inputs[0].dtype() != mx::float32) {
    throw std::invalid_argument("logits must be float32 on a CPU");
  }
  check_contiguous(inputs);
  auto& out = outputs[0];
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  cpu::DrawArguments arguments{
      row_contiguous(inputs[0], encoder).data<float>(),
      reinterpret_cast<const DrawOptions*>(inputs[1].data<uint32_t>()),
      inputs[2].data<int32_t>(),
      inputs[3].data<int32_t>(),
      inputs[4].data<int32_t>(),
      inputs[5].data<float>(),
      inputs[0].shape(1),
      inputs[2].shape(1)};
  encoder.dispatch([arguments, out = out.data<int32_t>(), rows = out.size()]() {
    const auto* kernels = &cpu::kernels_in_use();
    cpu::ThreadPool::shared().parallel_for(
        rows, [&](int64_t row) { out[row] = cpu::draw_token(*kernels, arguments, row); });
  });
}

} // namespace pomona
