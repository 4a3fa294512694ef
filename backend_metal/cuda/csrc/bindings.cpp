// `_cuda`: the operators on NVIDIA GPUs. A module of its own, since it needs symbols that only MLX's
// CUDA build has: backend_metal/native.py loads it beside that.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "cuda/csrc/memory.h"
#include "cuda/csrc/product_bindings.h"
#include "cuda/csrc/recording_bindings.h"
#include "cuda/csrc/row_bindings.h"
#include "cuda/csrc/upload_bindings.h"
#include "gpu/shader_source.h"
#include "python/draw_bindings.h"
#include "python/operator_bindings.h"
#include "python/recurrent_bindings.h"
#include "python/rotate_heads_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_cuda, m) {
  m.attr("MLX_VERSION") = POMONA_MLX_VERSION;
  pomona::bind_operators(m, mlx::core::Device::POMONA_GPU_DEVICE);
  pomona::bind_recurrent(m, mlx::core::Device::POMONA_GPU_DEVICE);
  pomona::bind_draws(m, mlx::core::Device::POMONA_GPU_DEVICE);
  pomona::bind_rotate_heads(
      m, mlx::core::Device::POMONA_GPU_DEVICE, pomona::rotate_heads);
  pomona::cuda::bind_rows(m, mlx::core::Device::POMONA_GPU_DEVICE);
  pomona::cuda::bind_products(m, mlx::core::Device::POMONA_GPU_DEVICE);
  pomona::cuda::bind_recording(m);
  pomona::cuda::bind_upload(m, mlx::core::Device::POMONA_GPU_DEVICE);
  m.def(
      "limit_memory",
      [](size_t more_bytes) {
        auto device = mlx::core::Device(mlx::core::Device::POMONA_GPU_DEVICE);
        pomona::cuda::limit_memory(more_bytes, mlx::core::default_stream(device));
      },
      "more_bytes"_a);
  m.def("set_shader_folder", &pomona::set_shader_folder, "folder"_a);
}
