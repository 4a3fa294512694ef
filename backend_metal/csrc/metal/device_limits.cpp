#include "metal/device_limits.h"

namespace pomona::metal {

namespace {

// Of the smallest chip with that letter: a plan for fewer cores than there are costs less than one
// for more. "applegpu_g13s": the last letter names the variant.
int fewest_cores(const std::string& architecture) {
  switch (architecture.empty() ? '\0' : architecture.back()) {
    case 'd': // Ultra
      return 48;
    case 'c':
    case 's': // Max, or Pro
      return 14;
    default:
      return 7;
  }
}

} // namespace

GpuLimits device_limits(mlx::core::metal::Device& device) {
  int cores = gpu_core_count();
  return {
      cores > 0 ? cores : fewest_cores(device.get_architecture()),
      static_cast<int64_t>(device.mtl_device()->maxThreadgroupMemoryLength())};
}

} // namespace pomona::metal
