// metal_compute's barriers.
#pragma once

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return (mem_flags)((uint)a | (uint)b);
}

MSL_FUNC void threadgroup_barrier(mem_flags flags, MSL_SITE) {
  msl_threadgroup_barrier((uint)flags, MSL_HERE);
}
MSL_FUNC void simdgroup_barrier(mem_flags flags, MSL_SITE) {
  msl_simdgroup_barrier((uint)flags, MSL_HERE);
}

} // namespace metal
