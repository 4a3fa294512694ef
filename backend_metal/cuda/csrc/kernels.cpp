#include "cuda/csrc/kernels.h"

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include "cuda/csrc/compiler.h"
#include "cuda/csrc/errors.h"

namespace pomona::cuda {

namespace {

int attribute(CUdevice_attribute name) {
  int value = 0;
  CUdevice device = 0;
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDeviceGetAttribute(&value, name, device), "cuDeviceGetAttribute");
  return value;
}

// Instructions of one architecture alone, from 9.0 on: no other GPU runs what is compiled here.
std::string architecture(mx::cu::Device& device) {
  int major = device.compute_capability_major();
  if (major < 8) {
    throw std::runtime_error(
        "the CUDA kernels need compute capability 8.0, not " + std::to_string(major) + "." +
        std::to_string(device.compute_capability_minor()));
  }
  return "sm_" + std::to_string(major) + std::to_string(device.compute_capability_minor()) +
      (major >= 9 ? "a" : "");
}

struct Loaded {
  CUfunction function = nullptr;
  int64_t memory_bytes = 0;
};

} // namespace

CUfunction load(
    mx::cu::Device& device, const Kernel& kernel, const Options& options, int64_t memory_bytes) {
  static std::mutex mutex;
  // Never unloaded: what runs on other threads may use them until the process ends.
  static auto* kernels = new std::map<std::tuple<int, Kernel, Options>, Loaded>;
  std::lock_guard lock(mutex);
  auto& loaded = (*kernels)[{device.cuda_device(), kernel, options}];
  if (!loaded.function) {
    auto code = compile(kernel_source(kernel, options), architecture(device));
    CUmodule module;
    check(cuModuleLoadData(&module, code.data()), "cuModuleLoadData");
    check(
        cuModuleGetFunction(&loaded.function, module, kernel.entry().c_str()),
        "cuModuleGetFunction");
  }
  if (memory_bytes > loaded.memory_bytes) {
    check(
        cuFuncSetAttribute(
            loaded.function,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            static_cast<int>(memory_bytes)),
        "cuFuncSetAttribute: more shared memory than the GPU has?");
    loaded.memory_bytes = memory_bytes;
  }
  return loaded.function;
}

GpuLimits device_limits() {
  static const GpuLimits limits{
      attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
      attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)};
  return limits;
}

bool has_clusters() {
  static const bool has = attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  return has;
}

bool has_dependent_launches() {
  static const bool has = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9;
  return has;
}

bool has_warpgroup_products() {
  static const bool has = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9;
  return has;
}

} // namespace pomona::cuda
