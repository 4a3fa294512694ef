#include "cuda/csrc/few_rows_product.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/csrc/product_operands.h"
#include "cuda/csrc/split_counters.h"
#include "cuda/kernels/few_rows_product_buffers.h"
#include "operators/pending.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// A block's outputs. Wide blocks read rows of x less often, but there have to be enough for each core.
constexpr int kWide = 64, kNarrow = 32;
constexpr int kBlocksPerCore = 2;
constexpr int kMostSplits = 8; // as many as any cluster may have

// Rows of a block, and what it has of a multiprocessor's memory.
struct RowTile {
  int rows;
  int memory;
};

// Rows of more than a warp's tiles are computed at once only where any number is computed alike.
RowTile row_tile(int num_rows, bool any_rows) {
  if (num_rows <= kMostWarpRows || !any_rows) {
    return {num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : kMostWarpRows, kFewRowsMemory};
  }
  if (device_limits().threadgroup_memory_bytes < kWholeCoreMemory) {
    return {kMostFewRows, kFewRowsMemory};
  }
  return {num_rows <= kMostFewRows ? kMostFewRows : kManyRows, kWholeCoreMemory};
}

// How the depth is shared out, which is no question of the rows: one gets the same whoever is computed
// with it.
struct DepthPlan {
  int outputs;
  int num_splits;
  int stages_per_split;
};

DepthPlan plan_depth(int matrix_rows, int depth, bool any_rows) {
  int cores = device_limits().num_cores;
  bool is_wide = matrix_rows >= kWide * kBlocksPerCore * cores;
  int outputs = any_rows ? kAnyRowsOutputs : is_wide ? kWide : kNarrow;
  int stages = ceil_div(depth, kFewRowsStage);
  int splits =
      std::clamp(cores / ceil_div(matrix_rows, outputs), 1, std::min(stages, kMostSplits));
  int per_split = ceil_div(stages, splits);
  return {outputs, ceil_div(stages, per_split), per_split};
}

struct ProductPlan {
  DepthPlan depth;
  RowTile tile;
  bool in_cluster;
  int64_t num_partials;
  GpuGrid grid;
};

ProductPlan plan_product(
    int num_rows, int num_outputs, int depth, bool is_gated, bool any_rows) {
  int matrix_rows = num_outputs * (is_gated ? 2 : 1);
  auto tile = row_tile(num_rows, any_rows);
  int rows = tile.rows;
  auto plan = plan_depth(matrix_rows, depth, any_rows);
  int outputs = plan.outputs;
  int across = ceil_div(num_rows, rows), down = ceil_div(matrix_rows, outputs);
  int64_t tiles_of_out = int64_t(across) * down;
  if (is_gated || (!any_rows && tiles_of_out > kMostSplitCounters)) {
    plan = {outputs, 1, ceil_div(depth, kFewRowsStage)};
  }
  int blocks = folds_splits(rows) ? 1 : plan.num_splits; // of a tile
  int64_t received = int64_t(blocks - 1) * rows * outputs * int64_t(sizeof(float));
  const auto has_room = [&](int of_core) {
    return few_rows_bytes(outputs, rows, of_core) + received <=
        device_limits().threadgroup_memory_bytes;
  };
  // Blocks with much to read have more of it on its way where each is alone on its core anyway, or so
  // many follow each other that it does not matter which core has one more.
  int64_t cores = device_limits().num_cores, all_blocks = tiles_of_out * blocks;
  bool are_few = all_blocks <= cores;
  bool are_many = outputs == kWide && all_blocks >= kBlocksPerCore * cores;
  if ((are_few || are_many) && plan.stages_per_split > kMostWholeCoreStages &&
      has_room(kWholeCoreMemory)) {
    tile.memory = kWholeCoreMemory;
  }
  int64_t memory = few_rows_bytes(outputs, rows, tile.memory);
  bool in_cluster = blocks > 1 && has_clusters() && has_room(tile.memory);
  return {
      plan,
      tile,
      in_cluster,
      blocks > 1 && !in_cluster ? tiles_of_out * blocks * rows * outputs : 0,
      {across, down, blocks, kFewRowsThreads, memory + (in_cluster ? received : 0)}};
}

// Whether both are what one array was split into.
bool are_halves(const mx::array& gate, const mx::array& up) {
  auto [indices, axis] = static_cast<const mx::Split&>(gate.primitive()).state();
  return gate.sibling_position() == 0 && gate.siblings().size() == 1 &&
      gate.siblings()[0].id() == up.id() && axis == int(gate.ndim()) - 1 &&
      gate.shape() == up.shape();
}

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(what);
  }
}

} // namespace

std::vector<mx::Shape> FewRowsProduct::output_shapes(const std::vector<mx::array>& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = inputs[1].shape(0) / (is_gated_ ? 2 : 1);
  return {std::move(shape)};
}

bool FewRowsProduct::is_equivalent(const mx::Primitive& other) const {
  const auto& product = static_cast<const FewRowsProduct&>(other);
  return is_gated_ == product.is_gated_ && reads_ahead_ == product.reads_ahead_ &&
      any_rows_ == product.any_rows_;
}

void FewRowsProduct::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  auto& out = outputs[0];
  allocate(out, encoder);
  if (out.size() == 0) {
    return;
  }
  auto x = aligned_rows(encoder, inputs[0]), weights = aligned_rows(encoder, inputs[1]);
  bool are_packed = weights.id() != inputs[1].id();
  int depth = x.shape(-1), num_outputs = out.shape(-1);
  int num_rows = static_cast<int>(x.size() / depth);
  auto plan = plan_product(num_rows, num_outputs, depth, is_gated_, any_rows_);
  mx::array partials({static_cast<int>(plan.num_partials)}, mx::float32, nullptr, {});
  allocate(partials, encoder);
  encoder.add_temporary(partials);
  FewRowsProductParameters parameters{
      num_rows,
      num_outputs,
      depth,
      plan.depth.stages_per_split,
      plan.depth.num_splits,
      plan.in_cluster,
      reads_ahead_ && !are_packed};
  FewRowsProductBuffers buffers{
      pointer(x), pointer(weights), pointer(out), pointer<float>(partials), nullptr};
  if (plan.num_partials > 0) {
    const auto& zeros = split_counters(stream(), encoder);
    buffers.counters = pointer<unsigned>(zeros);
    encoder.set_output_array(zeros);
  }
  encoder.set_input_array(x);
  encoder.set_input_array(weights);
  encoder.set_output_array(partials);
  encoder.set_output_array(out);
  bool is_whole = plan.tile.memory == kWholeCoreMemory;
  const char* few = is_gated_ ? "gated_few_rows_product" : "few_rows_product";
  const char* whole = is_gated_ ? "gated_whole_core_product" : "whole_core_product";
  add_kernel(
      encoder,
      {is_whole ? "whole_core_product.cu" : "few_rows_product.cu",
       is_whole ? whole : few,
       element_type(x.dtype()),
       {plan.depth.outputs, plan.tile.rows / 8},
       "FewRowsProduct",
       kFewRowsThreads},
      {},
      plan.grid,
      parameters,
      buffers,
      plan.in_cluster ? plan.grid.z : 1);
}

mx::array few_rows_product(
    const mx::array& x, const mx::array& weights, bool any_rows, mx::Stream stream) {
  auto dtype = x.dtype();
  require(dtype == mx::float16 || dtype == mx::bfloat16, "x must be of float16 or bfloat16");
  require(weights.dtype() == dtype, "weights must be of the dtype of x");
  require(weights.ndim() == 2 && x.ndim() > 0, "weights must be a matrix, and x have rows");
  int depth = x.shape(-1);
  require(
      depth > 0 && depth % kFewRowsCopy == 0 && weights.shape(1) == depth,
      "x and weights must be of one depth, a multiple of 8");
  auto shape = x.shape();
  shape.back() = weights.shape(0);
  return mx::array(
      std::move(shape),
      dtype,
      std::make_shared<FewRowsProduct>(stream, false, are_rows(weights), any_rows),
      {mx::contiguous(x, false, stream), as_rows(weights, stream)});
}

std::optional<mx::array> gated_few_rows_product(
    const mx::array& gate, const mx::array& up, mx::Stream stream) {
  if (!is_pending(gate, "Split", stream) || !are_halves(gate, up) ||
      !is_pending(gate.inputs()[0], "FewRowsProduct", stream)) {
    return std::nullopt;
  }
  const auto& joined = gate.inputs()[0];
  const auto& product = static_cast<const FewRowsProduct&>(joined.primitive());
  if (product.is_gated()) {
    return std::nullopt;
  }
  const auto& weights = joined.inputs()[1];
  // Splits would be summed up otherwise: whoever does without this gets the same bits.
  if (product.any_rows() && plan_depth(weights.shape(0), weights.shape(1), true).num_splits > 1) {
    return std::nullopt;
  }
  return mx::array(
      gate.shape(),
      gate.dtype(),
      std::make_shared<FewRowsProduct>(stream, true, product.reads_ahead(), product.any_rows()),
      joined.inputs());
}

} // namespace pomona::cuda
