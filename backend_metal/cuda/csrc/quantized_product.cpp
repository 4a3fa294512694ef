#include "cuda/csrc/quantized_product.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <stdexcept>

#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/csrc/product_operands.h"
#include "cuda/csrc/split_counters.h"
#include "cuda/kernels/quantized_product_buffers.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// Blocks that keep a core busy.
constexpr int kBlocksPerCore = 2;
constexpr int kMostSplits = 16;

// Tiles of eight rows of a block. More would leave too few registers for three blocks on a core.
int row_tiles(int num_rows) {
  return num_rows <= 8 ? 1 : num_rows <= 16 ? 2 : 4;
}

struct ProductPlan {
  int tiles;
  int num_splits;
  int stages_per_split;
  int64_t num_partials;
  GpuGrid grid;
};

ProductPlan plan_product(int num_rows, int num_outputs, int depth, int bits) {
  int tiles = row_tiles(num_rows), rows = tiles * 8;
  int across = ceil_div(num_rows, rows), down = ceil_div(num_outputs, kProductOutputs);
  int stages = ceil_div(depth, product_stage(bits));
  int64_t tiles_of_out = int64_t(across) * down;
  // Whatever the rows, so that one gets the same whoever is computed with it.
  int splits = std::clamp(
      kBlocksPerCore * device_limits().num_cores / down, 1, std::min(stages, kMostSplits));
  if (tiles_of_out > kMostSplitCounters) {
    splits = 1;
  }
  int per_split = ceil_div(stages, splits);
  splits = ceil_div(stages, per_split);
  int64_t word_bytes = int64_t(kProductOutputs) * kProductParts * kProductChunkBytes;
  int64_t ring_bytes = kProductRing * (word_bytes + int64_t(product_stage(bits)) * rows * 2);
  int64_t sum_bytes = int64_t(kProductParts) * rows * kProductSumStride * sizeof(float);
  return {
      tiles,
      splits,
      per_split,
      splits > 1 ? tiles_of_out * splits * rows * kProductOutputs : 0,
      {across, down, splits, kProductThreads, std::max(ring_bytes, sum_bytes)}};
}

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(what);
  }
}

} // namespace

std::vector<mx::Shape> QuantizedProduct::output_shapes(const std::vector<mx::array>& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = inputs[1].shape(0);
  return {std::move(shape)};
}

bool QuantizedProduct::is_equivalent(const mx::Primitive& other) const {
  const auto& product = static_cast<const QuantizedProduct&>(other);
  return format_ == product.format_ && reads_ahead_ == product.reads_ahead_;
}

void QuantizedProduct::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  auto& out = outputs[0];
  allocate(out, encoder);
  if (out.size() == 0) {
    return;
  }
  auto x = aligned_rows(encoder, inputs[0]);
  int depth = x.shape(-1), num_outputs = inputs[1].shape(0);
  int num_rows = static_cast<int>(x.size() / depth);
  auto plan = plan_product(num_rows, num_outputs, depth, format_.bits);
  mx::array partials({static_cast<int>(plan.num_partials)}, mx::float32, nullptr, {});
  allocate(partials, encoder);
  encoder.add_temporary(partials);
  QuantizedProductParameters parameters{
      num_rows,
      num_outputs,
      depth,
      std::countr_zero(static_cast<unsigned>(format_.group_size)),
      plan.stages_per_split,
      plan.num_splits,
      reads_ahead_};
  QuantizedProductBuffers buffers{
      pointer(x),
      pointer<unsigned>(inputs[1]),
      pointer(inputs[2]),
      pointer(inputs[3]),
      pointer(out),
      pointer<float>(partials),
      nullptr};
  if (plan.num_splits > 1) {
    const auto& zeros = split_counters(stream(), encoder);
    buffers.counters = pointer<unsigned>(zeros);
    encoder.set_output_array(zeros);
  }
  encoder.set_input_array(x);
  for (size_t i = 1; i < inputs.size(); i++) {
    encoder.set_input_array(inputs[i]);
  }
  encoder.set_output_array(partials);
  encoder.set_output_array(out);
  add_kernel(
      encoder,
      {"quantized_product.cu",
       "quantized_product",
       element_type(x.dtype()),
       {format_.bits, plan.tiles},
       "QuantizedProduct",
       kProductThreads},
      {},
      plan.grid,
      parameters,
      buffers);
}

mx::array quantized_product(
    const mx::array& x,
    const mx::array& weights,
    const mx::array& scales,
    const mx::array& biases,
    QuantizedFormat format,
    mx::Stream stream) {
  require(format.bits == 4 || format.bits == 8, "bits must be 4 or 8");
  require(
      format.group_size == 32 || format.group_size == 64 || format.group_size == 128,
      "group_size must be 32, 64 or 128");
  auto dtype = x.dtype();
  require(dtype == mx::float16 || dtype == mx::bfloat16, "x must be of float16 or bfloat16");
  require(
      scales.dtype() == dtype && biases.dtype() == dtype && weights.dtype() == mx::uint32,
      "scales and biases must be of the dtype of x, weights of uint32");
  require(weights.ndim() == 2 && x.ndim() > 0, "weights must be a matrix, and x have rows");
  int depth = x.shape(-1);
  mx::Shape groups{weights.shape(0), depth / format.group_size};
  require(
      depth > 0 && depth % (512 / format.bits) == 0 && depth % format.group_size == 0 &&
          weights.shape(1) == depth / 32 * format.bits && scales.shape() == groups &&
          biases.shape() == groups,
      "x, weights, scales and biases must be of one depth, a multiple of 512 / bits");
  auto shape = x.shape();
  shape.back() = weights.shape(0);
  return mx::array(
      std::move(shape),
      dtype,
      std::make_shared<QuantizedProduct>(
          stream, format, are_rows(weights) && are_rows(scales) && are_rows(biases)),
      {mx::contiguous(x, false, stream),
       as_rows(weights, stream),
       as_rows(scales, stream),
       as_rows(biases, stream)});
}

} // namespace pomona::cuda
