#include "metal/pipelines.h"

#include <map>
#include <mutex>
#include <utility>

#include "common/bindings.h"
#include "gpu/shader_source.h"

namespace pomona::metal {

namespace {

// Of the template, each behind `separator` but the first.
std::string arguments(const Kernel& kernel, const char* separator) {
  std::string all(kernel.type);
  for (int size : kernel.sizes) {
    if (size == 0) {
      break;
    }
    all += separator + std::to_string(size);
  }
  return all;
}

std::string instantiation(const Kernel& kernel) {
  std::string function = std::string(kernel.function) + "<" + arguments(kernel, ", ") + ">";
  return "template [[host_name(\"" + kernel.name() + "\")]] [[kernel]] decltype(" + function +
      ") " + function + ";\n";
}

mx::metal::MTLFCList constants(const Options& o) {
  return {
      {&o.block_size, MTL::DataTypeInt, POMONA_CONSTANT_BLOCK_SIZE},
      {&o.has_window, MTL::DataTypeBool, POMONA_CONSTANT_HAS_WINDOW},
      {&o.has_softcap, MTL::DataTypeBool, POMONA_CONSTANT_HAS_SOFTCAP},
      {&o.has_sinks, MTL::DataTypeBool, POMONA_CONSTANT_HAS_SINKS},
      {&o.has_new_tokens, MTL::DataTypeBool, POMONA_CONSTANT_HAS_NEW_TOKENS},
      {&o.has_partials, MTL::DataTypeBool, POMONA_CONSTANT_HAS_PARTIALS},
      {&o.aligned, MTL::DataTypeBool, POMONA_CONSTANT_ALIGNED},
      {&o.two_caches, MTL::DataTypeBool, POMONA_CONSTANT_TWO_CACHES},
      {&o.values_in_keys, MTL::DataTypeBool, POMONA_CONSTANT_VALUES_IN_KEYS},
  };
}

MTL::ComputePipelineState* make_pipeline(
    mx::metal::Device& device, const Kernel& kernel, const Options& options) {
  auto source = shader_source(std::string(kernel.file));
  std::string name = kernel.name();
  // MLX's default is Metal's safe mathematics, which the kernels need: infinities are meant.
  auto* library = device.get_library(
      "pomona_" + name + "_" + source->hash, [&] { return source->text + instantiation(kernel); });
  return device.get_kernel(name, library, name + options.key(), constants(options));
}

// MLX keeps pipelines as long as the process lives; this finds them without their names. Not locked
// while one is compiled, which takes a second.
class Pipelines {
 public:
  using Key = std::pair<Kernel, Options>;

  // Null: not compiled yet, or of other texts.
  MTL::ComputePipelineState* find(const Key& key, int generation) {
    std::lock_guard lock(mutex_);
    auto it = pipelines_.find(key);
    return generation == generation_ && it != pipelines_.end() ? it->second : nullptr;
  }

  void keep(const Key& key, int generation, MTL::ComputePipelineState* pipeline) {
    std::lock_guard lock(mutex_);
    if (generation != generation_) {
      pipelines_.clear();
      generation_ = generation;
    }
    pipelines_[key] = pipeline;
  }

 private:
  std::mutex mutex_;
  int generation_ = 0; // of the shaders
  std::map<Key, MTL::ComputePipelineState*> pipelines_;
};

} // namespace

std::string Kernel::name() const {
  return std::string(function) + "_" + arguments(*this, "_");
}

std::string Options::key() const {
  std::string key = "_" + std::to_string(block_size) + "_";
  for (bool option : {
           has_window,
           has_softcap,
           has_sinks,
           has_new_tokens,
           has_partials,
           aligned,
           two_caches,
           values_in_keys}) {
    key += option ? '1' : '0';
  }
  return key;
}

MTL::ComputePipelineState* pipeline(
    mx::metal::Device& device, const Kernel& kernel, const Options& options) {
  static Pipelines pipelines;
  std::pair key(kernel, options);
  int generation = shader_generation();
  if (auto* found = pipelines.find(key, generation)) {
    return found;
  }
  auto* made = make_pipeline(device, kernel, options);
  pipelines.keep(key, generation, made);
  return made;
}

std::string_view metal_type(mx::Dtype dtype) {
  if (dtype == mx::float32) {
    return "float";
  }
  return dtype == mx::float16 ? "half" : "bfloat";
}

std::string_view metal_bits(mx::Dtype dtype) {
  return mx::size_of(dtype) == 2 ? "ushort" : "uint";
}

} // namespace pomona::metal
