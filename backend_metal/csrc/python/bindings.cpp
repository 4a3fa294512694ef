#include <mlx/scheduler.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/gemm/gemm.h"
#include "cpu/attention/attention.h"
#include "cpu/arrays/cache_memory.h"
#include "cpu/kernels/table.h"
#include "cpu/layers/add_rms_norm.h"
#include "cpu/layers/float_heads.h"
#include "cpu/layers/float_rows.h"
#include "cpu/layers/panels.h"
#include "cpu/layers/quantized.h"
#include "cpu/layers/quantized_rows.h"
#include "python/draw_bindings.h"
#include "python/operator_bindings.h"
#include "python/recurrent_bindings.h"
#include "operators/operators.h"
#include "python/plan_bindings.h"
#include "python/repeated_graph_bindings.h"
#include "python/rotate_heads_bindings.h"
#include "cpu/layers/exponential.h"
#include "cpu/layers/swiglu.h"
#ifdef POMONA_METAL
#include "gpu/shader_source.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;
using namespace pomona;

namespace {

mx::Stream cpu_stream() {
  return mx::default_stream(mx::Device::cpu);
}

void bind_layers(nb::module_& m) {
  m.def(
      "exponential",
      [](const mx::array& x) { return exponential(x, cpu_stream()); },
      "x"_a);
  m.def(
      "swiglu",
      [](const mx::array& gate, const mx::array& up) { return swiglu(gate, up, cpu_stream()); },
      "gate"_a,
      "up"_a);
  m.def(
      "rms_norm",
      [](const mx::array& x, const mx::array& weight, float epsilon) {
        return rms_norm(x, weight, epsilon, cpu_stream());
      },
      "x"_a,
      "weight"_a,
      "epsilon"_a);
  m.def(
      "rms_norm_of_sum",
      // The caller's own array, which becomes another.
      [](mx::array& x, const mx::array& weight, float epsilon) {
        return rms_norm_of_sum(x, weight, epsilon, cpu_stream());
      },
      nb::arg("x").noconvert(),
      "weight"_a,
      "epsilon"_a);
  m.def(
      "rope",
      [](const mx::array& x,
         const mx::array& positions,
         const mx::array& frequencies,
         float scale) { return rope(x, positions, frequencies, scale, cpu_stream()); },
      "x"_a,
      "positions"_a,
      "frequencies"_a,
      "scale"_a);
}

void bind_products(nb::module_& m) {
  m.def(
      "panel_product",
      [](const mx::array& x, const mx::array& panels, int num_columns) {
        return panel_product(x, panels, num_columns, cpu_stream());
      },
      "x"_a,
      "panels"_a,
      "num_columns"_a);
  m.def(
      "panel_rows",
      [](const mx::array& indices, const mx::array& panels, int num_rows) {
        return panel_rows(indices, panels, num_rows, cpu_stream());
      },
      "indices"_a,
      "panels"_a,
      "num_rows"_a);
  m.def(
      "lay_in_panels",
      [](const mx::array& weight) { return lay_in_panels(weight, cpu_stream()); },
      "weight"_a);
  m.def(
      "lay_together",
      [](const std::vector<mx::array>& arrays) { return cpu::lay_together(arrays, cpu_stream()); },
      "arrays"_a);
  m.def(
      "quantized_matmul",
      [](const mx::array& x,
         const mx::array& words,
         const mx::array& scales,
         const mx::array& biases,
         int group_size,
         int bits) {
        return quantized_matmul(x, words, scales, biases, {bits, group_size}, cpu_stream());
      },
      "x"_a,
      "words"_a,
      "scales"_a,
      "biases"_a,
      "group_size"_a,
      "bits"_a);
  m.def(
      "gather_quantized_matmul",
      [](const mx::array& x,
         const mx::array& words,
         const mx::array& scales,
         const mx::array& biases,
         const mx::array& indices,
         int group_size,
         int bits) {
        return gather_quantized_matmul(
            x, words, scales, biases, indices, {bits, group_size}, cpu_stream());
      },
      "x"_a,
      "words"_a,
      "scales"_a,
      "biases"_a,
      "indices"_a,
      "group_size"_a,
      "bits"_a);
  m.def(
      "quantized_rows",
      [](const mx::array& indices,
         const mx::array& words,
         const mx::array& scales,
         const mx::array& biases,
         int group_size,
         int bits) {
        return quantized_rows(indices, words, scales, biases, {bits, group_size}, cpu_stream());
      },
      "indices"_a,
      "words"_a,
      "scales"_a,
      "biases"_a,
      "group_size"_a,
      "bits"_a);
  m.def("product_kernel", [] { return gemm::kernel_name(); });
  m.def(
      "set_product_kernel",
      [](const std::string& name) {
        if (!gemm::set_kernel(name.c_str())) {
          throw std::invalid_argument("this machine has no " + name);
        }
      },
      "name"_a);
}

void bind_cpu(nb::module_& m) {
  m.def(
      "zeros",
      [](const std::vector<int>& shape, mx::Dtype dtype) {
        return cpu::zeros(mx::Shape(shape.begin(), shape.end()), dtype);
      },
      "shape"_a,
      "dtype"_a);
  m.def("num_threads", [] { return cpu::ThreadPool::shared().num_threads(); });
  m.def(
      "set_num_threads",
      [](int num_threads) {
        nb::gil_scoped_release release;
        cpu::ThreadPool::shared().resize(num_threads);
      },
      "num_threads"_a);
  m.def("instruction_set", [] { return cpu::kernels_in_use().name; });
  m.def(
      "set_instruction_set",
      [](const std::string& name) { cpu::set_instruction_set(name.c_str()); },
      "name"_a);
}

int forget_lost_tasks() {
  int lost = mx::scheduler::n_active_tasks();
  for (int i = 0; i < lost; i++) {
    mx::scheduler::notify_task_completion(mx::default_stream(mx::Device::cpu));
  }
  return lost;
}

#ifdef POMONA_METAL
void bind_metal(nb::module_ m) {
  bind_operators(m, mx::Device::POMONA_GPU_DEVICE);
  bind_recurrent(m, mx::Device::POMONA_GPU_DEVICE);
  bind_rotate_heads(m, mx::Device::POMONA_GPU_DEVICE, rotate_heads);
  bind_draws(m, mx::Device::POMONA_GPU_DEVICE);
  m.def("set_shader_folder", &set_shader_folder, "folder"_a);
}
#endif

// Memory that nothing has touched, so that a test of huge strides needs few pages of it.
mx::array uninitialized(const std::vector<int>& shape, mx::Dtype dtype) {
  mx::Shape dims(shape.begin(), shape.end());
  size_t bytes = size_of(dtype);
  for (int dim : dims) {
    bytes *= dim;
  }
  return mx::array(mx::allocator::malloc(bytes), std::move(dims), dtype);
}

void bind_testing(nb::module_ m) {
  m.def("uninitialized", &uninitialized, "shape"_a, "dtype"_a);
  for (const char* name : {"exp", "tanh"}) {
    bool is_exp = name[0] == 'e';
    m.def(
        name,
        [is_exp](const std::string& instruction_set, const std::vector<float>& x) {
          const auto* kernels = cpu::find_kernels(instruction_set.c_str());
          if (!kernels) {
            throw std::invalid_argument("this machine has no " + instruction_set);
          }
          std::vector<float> in(x), out;
          in.resize((x.size() + 15) / 16 * 16);
          out.resize(in.size());
          (is_exp ? kernels->exp : kernels->tanh)(in.data(), out.data(), in.size());
          out.resize(x.size());
          return out;
        },
        "instruction_set"_a,
        "x"_a);
  }
}

} // namespace

NB_MODULE(_native, m) {
  m.attr("MLX_VERSION") = POMONA_MLX_VERSION;
  m.attr("NANOBIND_ABI_TAG") = NB_PLATFORM_ABI_TAG;
  m.def("knows_mlx_arrays", [] { return nb::type<mx::array>().is_valid(); });
  bind_operators(m, mx::Device::cpu);
  bind_recurrent(m, mx::Device::cpu);
  bind_repeated_graph(m);
  m.def("check_cache_strides", &check_cache_strides, "name"_a, "cache"_a);
  bind_plans(m);
  bind_layers(m);
  bind_rotate_heads(m, mx::Device::cpu, rotate_heads_on_cpu);
  bind_draws(m, mx::Device::cpu);
  bind_products(m);
  bind_cpu(m);
  m.def(
      "forget_lost_tasks",
      &forget_lost_tasks,
      R"(Has MLX count those tasks as ended whose queueing raised the error of an earlier one; returns
how many. MLX never does, and past ten of them its next evaluation waits for ever. Nothing may be
evaluated meanwhile.)");
#ifdef POMONA_METAL
  bind_metal(m.def_submodule("metal"));
#endif
  bind_testing(m.def_submodule("testing"));
}
