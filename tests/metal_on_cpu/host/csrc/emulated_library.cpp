#include "emulated_library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace pomona::metal_on_cpu {

namespace {

template <typename Function>
Function* symbol(void* handle, const char* name) {
  void* address = dlsym(handle, name);
  if (!address) {
    throw std::runtime_error(dlerror());
  }
  return reinterpret_cast<Function*>(address);
}

KernelSignature signature_of(const metal_emulator_kernel& kernel) {
  KernelSignature signature;
  for (int i = 0; i < kernel.num_parameters; i++) {
    const auto& parameter = kernel.parameters[i];
    if (parameter.kind == METAL_EMULATOR_BUFFER) {
      signature.buffers.push_back(
          {parameter.index,
           parameter.writable != 0,
           parameter.required != 0,
           parameter.constant});
    } else if (parameter.kind == METAL_EMULATOR_THREADGROUP_MEMORY) {
      signature.threadgroup_arguments.push_back(parameter.index);
    }
  }
  return signature;
}

} // namespace

EmulatedLibrary::EmulatedLibrary(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    throw std::runtime_error(dlerror());
  }
  run_ = symbol<decltype(metal_emulator_run)>(handle, "metal_emulator_run");
  allocate_ = symbol<decltype(metal_emulator_allocate)>(handle, "metal_emulator_allocate");
  free_ = symbol<decltype(metal_emulator_free)>(handle, "metal_emulator_free");
  auto* get_kernel =
      symbol<decltype(metal_emulator_get_kernel)>(handle, "metal_emulator_get_kernel");
  int num_kernels =
      symbol<decltype(metal_emulator_num_kernels)>(handle, "metal_emulator_num_kernels")();
  for (int i = 0; i < num_kernels; i++) {
    const auto* kernel = get_kernel(i);
    kernels_[kernel->name] = signature_of(*kernel);
  }
  auto* get_constant =
      symbol<decltype(metal_emulator_get_constant)>(handle, "metal_emulator_get_constant");
  int num_constants =
      symbol<decltype(metal_emulator_num_constants)>(handle, "metal_emulator_num_constants")();
  for (int i = 0; i < num_constants; i++) {
    const auto* constant = get_constant(i);
    constants_[constant->index] = constant;
  }
}

const KernelSignature* EmulatedLibrary::find(const std::string& kernel) const {
  auto it = kernels_.find(kernel);
  return it == kernels_.end() ? nullptr : &it->second;
}

const metal_emulator_constant* EmulatedLibrary::find_constant(int index) const {
  auto it = constants_.find(index);
  return it == constants_.end() ? nullptr : it->second;
}

void EmulatedLibrary::run(
    const metal_emulator_dispatch& dispatch, metal_emulator_result& result) const {
  if (run_(&dispatch, &result) != 0) {
    throw std::runtime_error(result.error);
  }
}

} // namespace pomona::metal_on_cpu
