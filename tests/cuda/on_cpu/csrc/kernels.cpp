// In place of the shipped kernels.cpp, which compiles for a GPU.
//
// A kernel is compiled once, with its options as variables that are set before each launch.
#include "kernels.h"

#include <dlfcn.h>

#include <deque>
#include <map>
#include <mutex>
#include <regex>
#include <stdexcept>

#include "cuda/csrc/kernels.h"
#include "evaluation.h"

namespace cuda_on_cpu {

namespace {

std::function<std::string(const std::string&)> compile;
std::mutex mutex;
std::map<std::string, void*> libraries; // by kernel
std::deque<Function> functions;

template <typename T>
T* symbol(void* library, const char* name) {
  auto* found = reinterpret_cast<T*>(dlsym(library, name));
  if (!found) {
    throw std::runtime_error(std::string("a kernel's library has no ") + name);
  }
  return found;
}

void* library_of(const pomona::cuda::Kernel& kernel, const pomona::cuda::Options& options) {
  auto& library = libraries[kernel.name()];
  if (!library) {
    static const std::regex constant("constexpr (int|bool) (\\w+) = \\w+;\n");
    auto text = pomona::cuda::kernel_source(kernel, options);
    auto end = text.find("#line");
    text = std::regex_replace(
               text.substr(0, end), constant, "extern \"C\" $1 option_$2;\n$1 option_$2;\n"
                                              "#define $2 option_$2\n") +
        text.substr(end);
    library = dlopen(compile(text).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      throw std::runtime_error(dlerror());
    }
  }
  return library;
}

} // namespace

void set_compiler(std::function<std::string(const std::string&)> compiler) {
  compile = std::move(compiler);
}

} // namespace cuda_on_cpu

namespace pomona::cuda {

CUfunction load(
    mx::cu::Device&, const Kernel& kernel, const Options& options, int64_t /* memory_bytes */) {
  using namespace cuda_on_cpu;
  std::lock_guard lock(mutex);
  void* library = library_of(kernel, options);
  if (*symbol<const int>(library, "pomona_threads") != kernel.threads) {
    throw std::runtime_error(kernel.name() + " is compiled for another number of threads");
  }
  auto* run = symbol<void(const Launch&)>(library, "pomona_run");
  functions.push_back(
      {kernel.name(),
       symbol<const size_t>(library, "pomona_argument_bytes"),
       [library, run, options](const Launch& launch) {
         *symbol<int>(library, "option_block_size") = options.block_size;
         *symbol<bool>(library, "option_has_window") = options.has_window;
         *symbol<bool>(library, "option_has_softcap") = options.has_softcap;
         *symbol<bool>(library, "option_has_sinks") = options.has_sinks;
         *symbol<bool>(library, "option_has_new_tokens") = options.has_new_tokens;
         *symbol<bool>(library, "option_writes_new_tokens") = options.writes_new_tokens;
         *symbol<bool>(library, "option_has_partials") = options.has_partials;
         *symbol<bool>(library, "option_folds_splits") = options.folds_splits;
         *symbol<bool>(library, "option_aligned") = options.aligned;
         *symbol<bool>(library, "option_reads_ahead") = options.reads_ahead;
         run(launch);
       }});
  return &functions.back();
}

GpuLimits device_limits() {
  return {cuda_on_cpu::settings().num_cores, cuda_on_cpu::settings().memory_kb * 1024};
}

bool has_clusters() {
  return cuda_on_cpu::settings().warpgroups;
}

bool has_warpgroup_products() {
  return cuda_on_cpu::settings().warpgroups;
}

} // namespace pomona::cuda
