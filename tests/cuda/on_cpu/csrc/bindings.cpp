// `_cuda_on_cpu`: the shipped operators over the stand-in, its settings and what it saw.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cuda/csrc/kernel_source.h"
#include "cuda/csrc/loaded.h"
#include "cuda/csrc/product_bindings.h"
#include "cuda/csrc/row_bindings.h"
#include "cuda/csrc/row_plan.h"
#include "cuda/csrc/upload_bindings.h"
#include "cuda/kernels/attention_tile.h"
#include "cuda/kernels/warpgroup_tile.h"
#include "driver.h"
#include "evaluation.h"
#include "gpu/shader_source.h"
#include "kernels.h"
#include "python/draw_bindings.h"
#include "python/operator_bindings.h"
#include "python/recurrent_bindings.h"
#include "python/rotate_heads_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_cuda_on_cpu, m) {
  pomona::bind_operators(m, mlx::core::Device(mlx::core::Device::cpu));
  pomona::bind_recurrent(m, mlx::core::Device(mlx::core::Device::cpu));
  pomona::bind_draws(m, mlx::core::Device(mlx::core::Device::cpu));
  pomona::bind_rotate_heads(
      m, mlx::core::Device(mlx::core::Device::cpu), pomona::rotate_heads);
  pomona::cuda::bind_rows(m, mlx::core::Device(mlx::core::Device::cpu));
  pomona::cuda::bind_products(m, mlx::core::Device(mlx::core::Device::cpu));
  pomona::cuda::bind_upload(m, mlx::core::Device(mlx::core::Device::cpu));
  m.def("set_shader_folder", &pomona::set_shader_folder, "folder"_a);
  m.def(
      "set_compiler",
      [](nb::callable compiler) {
        cuda_on_cpu::set_compiler([compiler](const std::string& text) {
          nb::gil_scoped_acquire gil;
          return nb::cast<std::string>(compiler(text));
        });
      },
      "compiler"_a);
  m.def(
      "configure",
      [](bool backwards, int num_cores, bool warpgroups, int memory_kb) {
        cuda_on_cpu::settings() = {backwards, num_cores, warpgroups, memory_kb};
      },
      "backwards"_a,
      "num_cores"_a,
      "warpgroups"_a,
      "memory_kb"_a);
  m.def(
      "kernel_source",
      [](const std::string& file,
         const std::string& function,
         const std::string& type,
         const std::array<int, 2>& sizes,
         const std::string& family,
         int threads,
         bool options) {
        return pomona::cuda::kernel_source(
            {file, function, type, sizes, family, threads},
            {16, options, options, options, options, options, options, options, options});
      },
      "file"_a,
      "function"_a,
      "type"_a,
      "sizes"_a,
      "family"_a,
      "threads"_a,
      "options"_a);
  m.def("remember_loaded", &pomona::cuda::remember_loaded, "ints"_a);
  m.def("is_loaded", &pomona::cuda::is_loaded, "array"_a);
  m.def("forget_loaded", &pomona::cuda::forget_loaded);
  m.def("attention_threads", [](int head_dim, int head_dim_v, int itemsize, bool decode) {
    return pomona::attention_tile(head_dim, head_dim_v, itemsize, decode).threads;
  });
  m.def("decode_keys", [](int head_dim, int head_dim_v, int itemsize) {
    return pomona::attention_tile(head_dim, head_dim_v, itemsize, true).keys;
  });
  m.def("warpgroup_threads", [](int head_dim, int head_dim_v) {
    return pomona::warpgroup_tile(head_dim, head_dim_v).threads;
  });
  m.def("norm_block", [](int width, int itemsize) {
    auto block = pomona::cuda::plan_norm_block(width, itemsize);
    return nb::make_tuple(block.threads, block.chunks);
  });
  m.def("num_host_allocations", &cuda_on_cpu::num_host_allocations);
  m.def("take_failures", &cuda_on_cpu::take_failures);
  m.def("take_nodes", [] {
    nb::list nodes;
    for (const auto& node : cuda_on_cpu::take_nodes()) {
      auto addresses = [](const std::vector<const void*>& buffers) {
        nb::list list;
        for (const void* buffer : buffers) {
          list.append(reinterpret_cast<uintptr_t>(buffer));
        }
        return list;
      };
      nodes.append(nb::make_tuple(
          node.kernel,
          addresses(node.inputs),
          addresses(node.outputs),
          node.is_concurrent,
          node.num_blocks));
    }
    return nodes;
  });
}
