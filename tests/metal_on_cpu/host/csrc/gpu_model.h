// The GPU that the stand-in claims to be.
#pragma once

#include <cstddef>
#include <string>

namespace pomona::metal_on_cpu {

struct GpuModel {
  std::string architecture = "applegpu_g13g";
  int core_count = 8;
  size_t threadgroup_memory = 32 * 1024; // bytes
  size_t max_threads_per_threadgroup = 1024;
};

inline GpuModel& gpu_model() {
  static GpuModel model;
  return model;
}

} // namespace pomona::metal_on_cpu
