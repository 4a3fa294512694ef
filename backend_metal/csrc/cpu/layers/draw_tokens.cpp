#include "cpu/layers/draw_tokens.h"

#include <mlx/backend/cpu/encoder.h>

#include <stdexcept>
#include <string>

#include "cpu/attention.h"
#include "cpu/contiguous.h"
#include "cpu/draw.h"

namespace pomona {

namespace {

void check(const char* name, const mx::array& x, mx::Dtype dtype, const mx::Shape& shape) {
  if (x.dtype() != dtype || x.shape() != shape) {
    throw std::invalid_argument(std::string(name) + " has another shape or dtype than it must");
  }
}

} // namespace

void DrawTokens::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  auto options = row_contiguous(inputs[1], encoder).data<uint32_t>();
  cpu::DrawArguments arguments{
      row_contiguous(inputs[0], encoder).data<float>(),
      reinterpret_cast<const cpu::DrawOptions*>(options),
      row_contiguous(inputs[2], encoder).data<int32_t>(),
      row_contiguous(inputs[3], encoder).data<int32_t>(),
      row_contiguous(inputs[4], encoder).data<float>(),
      inputs[0].shape(1)};
  encoder.dispatch([arguments, out = out.data<int32_t>(), rows = out.size()]() {
    const auto* kernels = cpu::find_kernels(cpu::instruction_set());
    cpu::ThreadPool::shared().parallel_for(
        rows, [&](int64_t row) { out[row] = cpu::draw_token(*kernels, arguments, row); });
  });
}

void DrawTokens::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("DrawTokens has no GPU kernel");
}

std::vector<mx::Shape> DrawTokens::output_shapes(const std::vector<mx::array>& inputs) {
  return {mx::Shape{inputs[0].shape(0)}};
}

bool DrawTokens::is_equivalent(const mx::Primitive&) const {
  return true;
}

mx::array draw_tokens(
    const mx::array& logits,
    const mx::array& options,
    const mx::array& counts,
    const mx::array& bias_ids,
    const mx::array& biases,
    mx::Stream stream) {
  if (logits.ndim() != 2 || logits.shape(1) < 1 || counts.ndim() != 2 || bias_ids.ndim() != 1) {
    throw std::invalid_argument("logits and counts must be [rows, vocab_size], bias_ids [n]");
  }
  int rows = logits.shape(0), vocab_size = logits.shape(1);
  check("logits", logits, mx::float32, logits.shape());
  check("options", options, mx::uint32, {rows, cpu::kDrawWords});
  check("counts", counts, mx::int32, {counts.shape(0), vocab_size});
  check("bias_ids", bias_ids, mx::int32, bias_ids.shape());
  check("biases", biases, mx::float32, bias_ids.shape());
  return mx::array(
      mx::Shape{rows},
      mx::int32,
      std::make_shared<DrawTokens>(stream),
      {logits, options, counts, bias_ids, biases});
}

} // namespace pomona
