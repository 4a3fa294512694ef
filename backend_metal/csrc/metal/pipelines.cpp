#include "metal/pipelines.h"

#include "bindings.h"
#include "metal/shader_source.h"

namespace pomona::metal {

namespace {

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string all;
  for (const auto& word : words) {
    all += (all.empty() ? "" : separator) + word;
  }
  return all;
}

std::string instantiation(const Kernel& kernel) {
  std::string function = kernel.function + "<" + joined(kernel.arguments, ", ") + ">";
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

} // namespace

std::string Kernel::name() const {
  return function + "_" + joined(arguments, "_");
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
  auto source = shader_source(kernel.file);
  std::string name = kernel.name();
  // MLX's default is Metal's safe mathematics, which the kernels need: infinities are meant.
  auto* library = device.get_library(
      "pomona_" + name + "_" + source->hash, [&] { return source->text + instantiation(kernel); });
  return device.get_kernel(name, library, name + options.key(), constants(options));
}

std::string metal_type(mx::Dtype dtype) {
  if (dtype == mx::float32) {
    return "float";
  }
  return dtype == mx::float16 ? "half" : "bfloat";
}

std::string metal_bits(mx::Dtype dtype) {
  return mx::size_of(dtype) == 2 ? "ushort" : "uint";
}

} // namespace pomona::metal
