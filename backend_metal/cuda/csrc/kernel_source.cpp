#include "cuda/csrc/kernel_source.h"

#include <algorithm>
#include <utility>

#include "gpu/shader_source.h"

namespace pomona::cuda {

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

} // namespace

std::string Kernel::name() const {
  return std::string(function) + "_" + arguments(*this, "_");
}

std::string Kernel::entry() const {
  std::string entry = std::string(kEntryPrefix) + name();
  // Of "unsigned short".
  std::replace(entry.begin(), entry.end(), ' ', '_');
  return entry;
}

std::string kernel_source(const Kernel& kernel, const Options& o) {
  std::string text = "constexpr int block_size = " + std::to_string(o.block_size) + ";\n";
  for (auto [name, value] : {
           std::pair{"has_window", o.has_window},
           {"has_softcap", o.has_softcap},
           {"has_sinks", o.has_sinks},
           {"has_new_tokens", o.has_new_tokens},
           {"writes_new_tokens", o.writes_new_tokens},
           {"has_partials", o.has_partials},
           {"folds_splits", o.folds_splits},
           {"aligned", o.aligned},
           {"reads_ahead", o.reads_ahead}}) {
    text += std::string("constexpr bool ") + name + " = " + (value ? "true" : "false") + ";\n";
  }
  text += shader_source("cuda/kernels/" + std::string(kernel.file))->text;
  std::string family(kernel.family), function(kernel.function);
  text += "POMONA_KERNEL(" + kernel.entry() + ", " + std::to_string(kernel.threads) +
      ", pomona::" + family + "Parameters, pomona::" + family + "Buffers, pomona::" + function + "<" +
      arguments(kernel, ", ") + ">)\n";
  return text;
}

} // namespace pomona::cuda
