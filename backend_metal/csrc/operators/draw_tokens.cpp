#include "operators/draw_tokens.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "operators/primitives.h"

namespace pomona {

namespace {

void check(const char* name, const mx::array& x, mx::Dtype dtype, const mx::Shape& shape) {
  if (x.dtype() != dtype || x.shape() != shape) {
    throw std::invalid_argument(std::string(name) + " has another shape or dtype than it must");
  }
}

void check_matrix(const char* name, const mx::array& x) {
  if (x.ndim() != 2) {
    throw std::invalid_argument(std::string(name) + " must have two dimensions");
  }
}

} // namespace

void DrawTokens::check_contiguous(const std::vector<mx::array>& inputs) {
  for (size_t i = 1; i < inputs.size(); i++) {
    if (inputs[i].size() > 0 && !inputs[i].flags().row_contiguous) {
      throw std::invalid_argument("options, masks and biases of a draw must be contiguous");
    }
  }
}

#ifndef POMONA_GPU_DEVICE
void DrawTokens::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("DrawTokens has no GPU kernels in this build");
}
#endif

std::vector<mx::Shape> DrawTokens::output_shapes(const std::vector<mx::array>& inputs) {
  std::vector<mx::Shape> shapes{{inputs[0].shape(0)}};
  shapes.resize(1 + (is_metal(stream()) ? kWorkspaces : 0), mx::Shape{0});
  return shapes;
}

bool DrawTokens::is_equivalent(const mx::Primitive& other) const {
  return cuts_ == static_cast<const DrawTokens&>(other).cuts_;
}

mx::array draw_tokens(
    const mx::array& logits,
    const mx::array& options,
    const DrawTables& tables,
    bool cuts,
    mx::Stream stream) {
  check_matrix("logits", logits);
  check_matrix("masks", tables.masks);
  check_matrix("counts", tables.counts);
  int rows = logits.shape(0), vocab_size = logits.shape(1);
  if (vocab_size < 1) {
    throw std::invalid_argument("logits must be of 1 token or more");
  }
  if (auto t = logits.dtype(); t != mx::float32 && t != mx::float16 && t != mx::bfloat16) {
    throw std::invalid_argument("logits must be float32, float16 or bfloat16");
  }
  int words = tables.masks.shape(1);
  if (tables.masks.shape(0) > 0 && words < (vocab_size + 31) / 32) {
    throw std::invalid_argument("masks must have a bit for each token");
  }
  const auto& bias_ids = tables.bias_ids;
  if (bias_ids.ndim() != 1) {
    throw std::invalid_argument("bias_ids must have one dimension");
  }
  check("options", options, mx::uint32, {rows, kDrawWords});
  check("masks", tables.masks, mx::int32, tables.masks.shape());
  check("counts", tables.counts, mx::int32, {tables.counts.shape(0), vocab_size});
  check("bias_ids", bias_ids, mx::int32, bias_ids.shape());
  check("biases", tables.biases, mx::float32, bias_ids.shape());
  // The others come from the host: a node for each would cost more than it is good for.
  const auto& counts = tables.counts;
  std::vector<mx::array> inputs{
      logits,
      options,
      tables.masks,
      counts.shape(0) > 0 ? mx::contiguous(counts, false, stream) : counts,
      bias_ids,
      tables.biases};
  auto primitive = std::make_shared<DrawTokens>(stream, cuts);
  auto shapes = primitive->output_shapes(inputs);
  std::vector<mx::Dtype> dtypes(shapes.size(), mx::int32);
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, std::move(inputs))[0];
}

} // namespace pomona
