// Adding one kernel to MLX's graph of commands.
#pragma once

#include <mlx/backend/cuda/utils.h>

#include <string_view>

#include "cuda/csrc/kernels.h"
#include "gpu/rows.h"

namespace pomona::cuda {

// What kernels call the dtype.
inline std::string_view element_type(mx::Dtype dtype) {
  if (dtype == mx::float32) {
    return "float";
  }
  return dtype == mx::float16 ? "half" : "bfloat";
}

template <typename T = void>
T* pointer(const mx::array& array, int64_t offset = 0) {
  return reinterpret_cast<T*>(mx::gpu_ptr<char>(const_cast<mx::array&>(array)) + offset);
}

inline void* pointer(const Rows& rows) {
  return pointer(rows.array, rows.offset);
}

// Of the driver, what the encoder's kernels are launched on.
inline CUstream stream_of(mx::cu::CommandEncoder& encoder) {
  return static_cast<cudaStream_t>(encoder.stream());
}

// `cluster`: blocks along z that run beside each other and see each other's shared memory.
template <typename Parameters, typename Buffers>
void add_kernel(
    mx::cu::CommandEncoder& encoder,
    const Kernel& kernel,
    const Options& options,
    const GpuGrid& grid,
    Parameters parameters,
    Buffers buffers,
    int cluster = 1) {
  auto memory = grid.threadgroup_memory_bytes;
  auto function = load(encoder.device(), kernel, options, memory);
  void* arguments[] = {&parameters, &buffers};
  encoder.add_kernel_node_raw(
      function, dim3(grid.x, grid.y, grid.z), dim3(grid.threads), dim3(1, 1, cluster), memory, arguments);
}

} // namespace pomona::cuda
