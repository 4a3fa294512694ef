#include "dispatch_checks.h"

#include <algorithm>
#include <tuple>

#include "emulated_library.h"
#include "gpu_model.h"
#include "refuse.h"

namespace pomona::metal_on_cpu {

namespace {

std::string slot_name(const MTL::ComputePipelineState& pipeline, int index) {
  return pipeline.kernel + ": buffer(" + std::to_string(index) + ")";
}

// Whether the kernel has this argument: function constants may take it away.
bool is_needed(
    const MTL::ComputePipelineState& pipeline,
    const BufferParameter& parameter) {
  auto constant = pipeline.function_constants.find(parameter.constant);
  bool is_on = constant != pipeline.function_constants.end() && constant->second != 0;
  return parameter.is_required || is_on;
}

void check_arguments(const MTL::ComputePipelineState& pipeline,
                     const std::map<int, Binding>& bindings,
                     const std::map<int, size_t>& threadgroup_memory) {
  for (const auto& [index, binding] : bindings) {
    const auto& parameters = pipeline.signature->buffers;
    if (std::none_of(parameters.begin(), parameters.end(), [i = index](const auto& parameter) {
          return parameter.index == i;
        })) {
      refuse(pipeline.kernel + " has no buffer(" + std::to_string(index) + ")");
    }
  }
  for (const auto& parameter : pipeline.signature->buffers) {
    auto it = bindings.find(parameter.index);
    if (it == bindings.end()) {
      if (!is_needed(pipeline, parameter)) {
        continue;
      }
      refuse(slot_name(pipeline, parameter.index) + " is not bound");
    }
    if (parameter.is_writable && !it->second.written) {
      refuse(slot_name(pipeline, parameter.index) +
             " is written by the kernel, but not declared as an output");
    }
  }
  for (int index : pipeline.signature->threadgroup_arguments) {
    if (!threadgroup_memory.count(index)) {
      refuse(pipeline.kernel + ": threadgroup(" + std::to_string(index) + ") has no length");
    }
  }
}

// Apple's compiler takes every two buffer arguments for different memory.
void check_aliases(
    const MTL::ComputePipelineState& pipeline, const std::map<int, Binding>& bindings) {
  for (auto a = bindings.begin(); a != bindings.end(); ++a) {
    for (auto b = std::next(a); b != bindings.end(); ++b) {
      const auto& [first, second] = std::tie(a->second, b->second);
      bool is_same = !first.is_bytes() && first.memory.id == second.memory.id;
      if (is_same && (first.written || second.written)) {
        refuse(slot_name(pipeline, b->first) + " is the memory of buffer(" +
               std::to_string(a->first) + "), and one of them is written");
      }
    }
  }
}

void check_sizes(const MTL::ComputePipelineState& pipeline, MTL::Size grid, MTL::Size group,
                 const std::map<int, size_t>& threadgroup_memory) {
  for (auto size : {grid, group}) {
    if (size.width * size.height * size.depth == 0) {
      refuse(pipeline.kernel + ": a grid or a threadgroup has no threads");
    }
  }
  auto threads = group.width * group.height * group.depth;
  if (threads > pipeline.maxTotalThreadsPerThreadgroup()) {
    refuse(pipeline.kernel + ": " + std::to_string(threads) +
           " threads are more than maxTotalThreadsPerThreadgroup, " +
           std::to_string(pipeline.maxTotalThreadsPerThreadgroup()));
  }
  size_t bytes = pipeline.staticThreadgroupMemoryLength();
  for (const auto& [index, length] : threadgroup_memory) {
    bytes += length;
  }
  if (bytes > gpu_model().threadgroup_memory) {
    refuse(pipeline.kernel + ": " + std::to_string(bytes) +
           " bytes of threadgroup memory are more than " +
           std::to_string(gpu_model().threadgroup_memory));
  }
}

} // namespace

bool is_written_by(const MTL::ComputePipelineState& pipeline, int index) {
  const auto& parameters = pipeline.signature->buffers;
  return std::any_of(parameters.begin(), parameters.end(), [=](const auto& parameter) {
    return parameter.index == index && parameter.is_writable;
  });
}

void check_dispatch(
    const MTL::ComputePipelineState& pipeline,
    const std::map<int, Binding>& bindings,
    const std::map<int, size_t>& threadgroup_memory,
    MTL::Size grid,
    MTL::Size group) {
  check_arguments(pipeline, bindings, threadgroup_memory);
  check_aliases(pipeline, bindings);
  check_sizes(pipeline, grid, group, threadgroup_memory);
}

} // namespace pomona::metal_on_cpu
