// The shipped primitives on the CPU's stream: what they hand to the stand-in for MLX's encoder runs
// there, once their inputs are there.
#include <mlx/backend/cpu/encoder.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "cuda/csrc/add_rms_norm.h"
#include "cuda/csrc/few_rows_product.h"
#include "cuda/csrc/fill_in_tokens.h"
#include "cuda/csrc/quantized_product.h"
#include "cuda/csrc/silu_product.h"
#include "cuda/csrc/upload.h"
#include "evaluation.h"
#include "kernels.h"
#include "launch.h"
#include "mlx/backend/cuda/device.h"
#include "operators/draw_tokens.h"
#include "operators/primitives.h"
#include "operators/recurrent.h"
#include "operators/rotate_heads.h"

namespace mlx::core::cu {

Device& device(mlx::core::Device) {
  static Device one;
  return one;
}

CommandEncoder& get_command_encoder(Stream) {
  static thread_local CommandEncoder encoder;
  return encoder;
}

void CommandEncoder::set_input_array(const array& a) {
  inputs_.push_back(a.buffer().ptr());
}

void CommandEncoder::set_output_array(const array& a) {
  outputs_.push_back(a.buffer().ptr());
}

void CommandEncoder::add_kernel_node_raw(
    CUfunction function, dim3 grid, dim3 block, dim3 cluster, uint32_t memory, void** arguments) {
  std::vector<std::vector<char>> copies;
  for (int i = 0; i < 2; i++) {
    auto* bytes = static_cast<const char*>(arguments[i]);
    copies.emplace_back(bytes, bytes + function->argument_bytes[i]);
  }
  bool backwards = cuda_on_cpu::settings().backwards;
  nodes.push_back(
      {function->name,
       std::move(inputs_),
       std::move(outputs_),
       in_concurrent,
       int64_t(grid.x) * grid.y * grid.z,
       [=]() mutable {
         void* pointers[] = {copies[0].data(), copies[1].data()};
         std::string failure;
         cuda_on_cpu::Launch launch{
             {int(grid.x), int(grid.y), int(grid.z)},
             int(cluster.z),
             int(block.x),
             memory,
             pointers,
             backwards,
             &failure};
         function->run(launch);
         if (!failure.empty()) {
           cuda_on_cpu::remember_failure(function->name + ": " + failure);
         }
       }});
  inputs_.clear();
  outputs_.clear();
}

} // namespace mlx::core::cu

namespace cuda_on_cpu {

namespace {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

std::mutex mutex;
std::vector<std::string> failures;
std::vector<Node> nodes;

// Within a group that nothing orders, as the settings say.
std::vector<std::function<void()>> in_order(std::vector<mx::cu::CommandEncoder::Node>& added) {
  std::vector<std::function<void()>> order;
  for (size_t first = 0; first < added.size();) {
    size_t last = first + 1;
    while (added[first].is_concurrent && last < added.size() && added[last].is_concurrent) {
      last++;
    }
    for (size_t i = first; i < last; i++) {
      order.push_back(added[settings().backwards ? last - 1 - (i - first) : i].run);
    }
    first = last;
  }
  return order;
}

void evaluate(mx::Primitive& primitive, const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cu::get_command_encoder(primitive.stream());
  encoder.nodes.clear();
  encoder.kept.clear();
  primitive.eval_gpu(inputs, outputs);
  {
    std::lock_guard lock(mutex);
    for (const auto& node : encoder.nodes) {
      nodes.push_back({node.kernel, node.inputs, node.outputs, node.is_concurrent, node.num_blocks});
    }
  }
  mx::cpu::get_command_encoder(primitive.stream())
      .dispatch([order = in_order(encoder.nodes), kept = encoder.kept]() {
        for (const auto& run : order) {
          run();
        }
      });
}

} // namespace

Settings& settings() {
  static Settings shared;
  return shared;
}

void remember_failure(std::string what) {
  std::lock_guard lock(mutex);
  failures.push_back(std::move(what));
}

std::vector<std::string> take_failures() {
  std::lock_guard lock(mutex);
  return std::exchange(failures, {});
}

std::vector<Node> take_nodes() {
  std::lock_guard lock(mutex);
  return std::exchange(nodes, {});
}

} // namespace cuda_on_cpu

namespace pomona {

void ReshapeAndCache::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void PagedAttention::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void ScatterPagedAttention::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void CausalConv::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void LinearAttention::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void DrawTokens::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void RotateHeads::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void cuda::FewRowsProduct::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void cuda::QuantizedProduct::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void cuda::AddRmsNorm::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void cuda::SiluProduct::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void cuda::FillInTokens::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

void cuda::Upload::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  cuda_on_cpu::evaluate(*this, inputs, outputs);
}

} // namespace pomona
