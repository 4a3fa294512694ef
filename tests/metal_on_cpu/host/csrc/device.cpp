// Libraries and pipelines, compiled on first use and found again by name, as MLX does.
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "compiler.h"
#include "emulated_library.h"
#include "gpu_model.h"
#include "metal/device_limits.h"
#include "mlx/backend/metal/device.h"
#include "refuse.h"

namespace NS {

String* String::string(const char* text, StringEncoding) {
  return reinterpret_cast<String*>(new std::string(text));
}

const char* String::utf8String() const {
  return reinterpret_cast<const std::string*>(this)->c_str();
}

} // namespace NS

namespace MTL {

using pomona::metal_on_cpu::gpu_model;

NS::UInteger Device::maxThreadgroupMemoryLength() const {
  return gpu_model().threadgroup_memory;
}

Size Device::maxThreadsPerThreadgroup() const {
  auto threads = gpu_model().max_threads_per_threadgroup;
  return {threads, threads, threads};
}

NS::UInteger Device::recommendedMaxWorkingSetSize() const {
  return NS::UInteger(16) << 30;
}

NS::UInteger ComputePipelineState::maxTotalThreadsPerThreadgroup() const {
  return gpu_model().max_threads_per_threadgroup;
}

} // namespace MTL

namespace pomona::metal {

int gpu_core_count() {
  return metal_on_cpu::gpu_model().core_count;
}

} // namespace pomona::metal

namespace mlx::core::metal {

using pomona::metal_on_cpu::gpu_model;
using pomona::metal_on_cpu::refuse;

namespace {

std::mutex& mutex() {
  static std::mutex shared;
  return shared;
}

struct ConstantType {
  const char* name;
  size_t size;
};

ConstantType constant_type(MTL::DataType type) {
  switch (type) {
    case MTL::DataTypeBool:
      return {"bool", 1};
    case MTL::DataTypeChar:
      return {"char", 1};
    case MTL::DataTypeUChar:
      return {"uchar", 1};
    case MTL::DataTypeShort:
      return {"short", 2};
    case MTL::DataTypeUShort:
      return {"ushort", 2};
    case MTL::DataTypeHalf:
      return {"half", 2};
    case MTL::DataTypeInt:
      return {"int", 4};
    case MTL::DataTypeUInt:
      return {"uint", 4};
    case MTL::DataTypeFloat:
      return {"float", 4};
    case MTL::DataTypeLong:
      return {"long", 8};
    case MTL::DataTypeULong:
      return {"ulong", 8};
  }
  refuse("no function constant has data type " + std::to_string(type));
}

bool same_type(std::string declared, const ConstantType& given) {
  if (declared.size() > 2 && declared.ends_with("_t")) {
    static const std::map<std::string, std::string> names{
        {"int8_t", "char"},   {"uint8_t", "uchar"}, {"int16_t", "short"}, {"uint16_t", "ushort"},
        {"int32_t", "int"},   {"uint32_t", "uint"}, {"int64_t", "long"},  {"uint64_t", "ulong"}};
    auto it = names.find(declared);
    declared = it == names.end() ? declared : it->second;
  }
  return declared == given.name;
}

std::map<int, uint64_t> constants_of(const MTL::Library& library, const MTLFCList& list) {
  std::map<int, uint64_t> constants;
  for (const auto& [value, type, index] : list) {
    auto given = constant_type(type);
    const auto* declared = library.code->find_constant(static_cast<int>(index));
    if (declared && !same_type(declared->type, given)) {
      refuse(library.name + ": function_constant(" + std::to_string(index) + ") is " +
             declared->type + ", and given as " + given.name);
    }
    uint64_t bits = 0;
    std::memcpy(&bits, value, given.size);
    if (!constants.emplace(static_cast<int>(index), bits).second) {
      refuse(library.name + ": function_constant(" + std::to_string(index) + ") is given twice");
    }
  }
  // Metal asks only for those that the function uses; which a change of it would change.
  for (const auto& [index, declared] : library.code->constants()) {
    if (!constants.count(index)) {
      refuse(library.name + ": function_constant(" + std::to_string(index) + "), " +
             declared->name + ", is given no value");
    }
  }
  return constants;
}

} // namespace

const std::string& Device::get_architecture() const {
  return gpu_model().architecture;
}

int Device::get_architecture_gen() const {
  // "applegpu_g13g": the generation lies before the letter of the variant.
  const auto& name = gpu_model().architecture;
  return std::stoi(name.substr(name.size() - 3, 2));
}

MTL::Library* Device::get_library(
    const std::string& name, const CompileOptions&, const std::function<std::string()>& builder) {
  std::string source = builder();
  {
    std::lock_guard lock(mutex());
    if (auto it = libraries_.find(name); it != libraries_.end()) {
      if (it->second->source != source) {
        refuse("the library name " + name + " stands for two texts");
      }
      return it->second;
    }
  }
  // Not under the lock: the compiler takes Python's.
  auto* code = pomona::metal_on_cpu::compile(source);
  std::lock_guard lock(mutex());
  auto& library = kept_libraries_.emplace_back(new MTL::Library{name, source, code});
  return libraries_.emplace(name, library.get()).first->second;
}

void Device::clear_library(const std::string& name) {
  std::lock_guard lock(mutex());
  if (auto it = libraries_.find(name); it != libraries_.end()) {
    kernels_.erase(it->second);
    libraries_.erase(it);
  }
}

void Device::clear() {
  std::lock_guard lock(mutex());
  kernels_.clear();
  libraries_.clear();
}

MTL::ComputePipelineState* Device::get_kernel(
    const std::string& base_name,
    MTL::Library* library,
    const std::string& hash_name,
    const MTLFCList& function_constants) {
  num_searches_++;
  std::lock_guard lock(mutex());
  const auto& key = hash_name.empty() ? base_name : hash_name;
  auto constants = constants_of(*library, function_constants);
  auto& kernels = kernels_[library];
  if (auto it = kernels.find(key); it != kernels.end()) {
    auto* pipeline = it->second;
    if (pipeline->kernel != base_name || pipeline->function_constants != constants) {
      refuse("the pipeline key " + key + " does not encode the kernel and all function constants");
    }
    return pipeline;
  }
  const auto* signature = library->code->find(base_name);
  if (!signature) {
    throw std::runtime_error("[metal::Device] Unable to load function " + base_name);
  }
  auto& pipeline = kept_pipelines_.emplace_back(new MTL::ComputePipelineState);
  pipeline->kernel = base_name;
  pipeline->key = key;
  pipeline->library = library;
  pipeline->signature = signature;
  pipeline->function_constants = std::move(constants);
  return kernels.emplace(key, pipeline.get()).first->second;
}

Device& device(mlx::core::Device) {
  static Device* shared = new Device;
  return *shared;
}

} // namespace mlx::core::metal
