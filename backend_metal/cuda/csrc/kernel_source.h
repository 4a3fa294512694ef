// The text of one kernel: a template's instantiation, for one set of options.
#pragma once

#include <array>
#include <compare>
#include <string>
#include <string_view>

namespace pomona::cuda {

// What the names of all entries begin with.
inline constexpr std::string_view kEntryPrefix = "pomona_";

// decode<bfloat, 128, 128> of cuda/kernels/decode.cu.
//
// Texts are literals, never made for a launch: a step asks for each layer's kernels again.
struct Kernel {
  std::string_view file;
  std::string_view function;
  std::string_view type; // the template's first argument
  std::array<int, 2> sizes; // its others, up to the first 0
  std::string_view family; // of its parameters and buffers, such as Attention
  int threads;

  auto operator<=>(const Kernel&) const = default;
  std::string name() const;
  std::string entry() const; // of the text
};

// Constants of the text; shaders/common/options.h says who reads them. Each kernel takes those it knows.
struct Options {
  int block_size = 0;
  bool has_window = false;
  bool has_softcap = false;
  bool has_sinks = false;
  bool has_new_tokens = false;
  bool writes_new_tokens = false; // to the caches, if has_new_tokens
  bool has_partials = false;
  bool folds_splits = false; // where has_partials: the kernel that leaves them
  bool aligned = false;
  bool reads_ahead = false; // what a step is launched with was there before the kernels before

  auto operator<=>(const Options&) const = default;
};

// The whole text, with every header of the project in its place.
std::string kernel_source(const Kernel& kernel, const Options& options);

} // namespace pomona::cuda
