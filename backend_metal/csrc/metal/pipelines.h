// Kernels, compiled when they are first used: a library for each instantiation of a template, and a
// pipeline for each set of options.
#pragma once

#include <mlx/backend/metal/device.h>

#include <array>
#include <compare>
#include <string>
#include <string_view>

namespace pomona::metal {

namespace mx = mlx::core;

// prefill<half, 128, 128> of prefill.metal. Its host name is prefill_half_128_128.
//
// Texts are literals, never made for a launch: a step asks for each layer's kernels again.
struct Kernel {
  std::string_view file;
  std::string_view function;
  std::string_view type; // the template's first argument
  std::array<int, 3> sizes{}; // its others, up to the first 0

  auto operator<=>(const Kernel&) const = default;
  std::string name() const;
};

// Function constants; see shaders/common/bindings.h. Each kernel takes those that it knows.
struct Options {
  int block_size = 0;
  bool has_window = false;
  bool has_softcap = false;
  bool has_sinks = false;
  bool has_new_tokens = false;
  bool has_partials = false;
  bool aligned = false;
  bool two_caches = false;
  bool values_in_keys = false;

  auto operator<=>(const Options&) const = default;
  std::string key() const; // a name for this set
};

// Compiled, or found again by the values alone: MLX's own books go by name.
MTL::ComputePipelineState* pipeline(
    mx::metal::Device& device, const Kernel& kernel, const Options& options);

// What Metal calls the dtype: float, half or bfloat.
std::string_view metal_type(mx::Dtype dtype);

// An unsigned integer of the dtype's size, for kernels that only copy.
std::string_view metal_bits(mx::Dtype dtype);

} // namespace pomona::metal
