#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "constants.h"
#include "cpu/attention.h"
#include "cpu/cache_memory.h"
#include "cpu/kernels/table.h"
#include "float_rows.h"
#include "launch_plan.h"
#include "operators.h"
#include "swiglu.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace pomona;

namespace {

AttentionOptions options_of(float scale, std::optional<int> window, std::optional<float> softcap) {
  return {scale, window.value_or(0), softcap.value_or(0.0f)};
}

mx::Stream cpu_stream() {
  return mx::default_stream(mx::Device::cpu);
}

nb::tuple pair(const std::vector<mx::array>& arrays) {
  return nb::make_tuple(arrays[0], arrays[1]);
}

void bind_operators(nb::module_& m) {
  m.def(
      "reshape_and_cache",
      [](const mx::array& k,
         const mx::array& v,
         const mx::array& k_cache,
         const mx::array& v_cache,
         const mx::array& slot_mapping) {
        return pair(reshape_and_cache(k, v, k_cache, v_cache, slot_mapping, cpu_stream()));
      },
      "k"_a,
      "v"_a,
      "k_cache"_a,
      "v_cache"_a,
      "slot_mapping"_a);
  m.def(
      "paged_attention",
      [](const mx::array& q,
         const mx::array& k_cache,
         const mx::array& v_cache,
         const mx::array& block_tables,
         const mx::array& seq_lens,
         const mx::array& cu_seqlens_q,
         float scale,
         std::optional<int> window,
         std::optional<float> softcap,
         const std::optional<mx::array>& sinks) {
        return paged_attention(
            q,
            k_cache,
            v_cache,
            block_tables,
            seq_lens,
            cu_seqlens_q,
            options_of(scale, window, softcap),
            sinks,
            cpu_stream());
      },
      "q"_a,
      "k_cache"_a,
      "v_cache"_a,
      "block_tables"_a,
      "seq_lens"_a,
      "cu_seqlens_q"_a,
      nb::kw_only(),
      "scale"_a,
      "window"_a = nb::none(),
      "softcap"_a = nb::none(),
      "sinks"_a = nb::none());
  m.def(
      "scatter_paged_attention",
      [](const mx::array& q,
         const mx::array& k,
         const mx::array& v,
         const mx::array& k_cache,
         const mx::array& v_cache,
         const mx::array& slot_mapping,
         const mx::array& block_tables,
         const mx::array& seq_lens,
         const mx::array& cu_seqlens_q,
         float scale,
         std::optional<int> window,
         std::optional<float> softcap,
         const std::optional<mx::array>& sinks) {
        auto arrays = scatter_paged_attention(
            q,
            k,
            v,
            k_cache,
            v_cache,
            slot_mapping,
            block_tables,
            seq_lens,
            cu_seqlens_q,
            options_of(scale, window, softcap),
            sinks,
            cpu_stream());
        return nb::make_tuple(arrays[0], arrays[1], arrays[2]);
      },
      "q"_a,
      "k"_a,
      "v"_a,
      "k_cache"_a,
      "v_cache"_a,
      "slot_mapping"_a,
      "block_tables"_a,
      "seq_lens"_a,
      "cu_seqlens_q"_a,
      nb::kw_only(),
      "scale"_a,
      "window"_a = nb::none(),
      "softcap"_a = nb::none(),
      "sinks"_a = nb::none());
  m.def(
      "copy_blocks",
      [](const mx::array& cache, const mx::array& sources, const mx::array& destinations) {
        return copy_blocks(cache, sources, destinations, cpu_stream());
      },
      "cache"_a,
      "sources"_a,
      "destinations"_a);
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
      "rope",
      [](const mx::array& x,
         const mx::array& positions,
         const mx::array& frequencies,
         float scale) { return rope(x, positions, frequencies, scale, cpu_stream()); },
      "x"_a,
      "positions"_a,
      "frequencies"_a,
      "scale"_a);
  m.def("check_cache_strides", &check_cache_strides, "name"_a, "cache"_a);
}

void bind_plan(nb::module_& m) {
  m.attr("KEYS_PER_SPLIT") = kKeysPerSplit;
  m.attr("KEY_TILE") = kKeyTile;
  m.attr("TILED_GROUP") = kTiledGroup;
  m.attr("MAX_TILE_ROWS") = kMaxTileRows;
  nb::class_<Task>(m, "Task")
      .def_prop_ro(
          "kernel",
          [](const Task& t) { return t.kernel == Kernel::decode ? "decode" : "prefill"; })
      .def_ro("seq", &Task::seq)
      .def_ro("first_row", &Task::first_row)
      .def_ro("num_rows", &Task::num_rows)
      .def_ro("first_head", &Task::first_head)
      .def_ro("num_heads", &Task::num_heads)
      .def_ro("first_split", &Task::first_split)
      .def_ro("num_splits", &Task::num_splits)
      .def_ro("partial", &Task::partial)
      .def_ro("split_stride", &Task::split_stride)
      .def_ro("cost", &Task::cost);
  nb::class_<Merge>(m, "Merge")
      .def_ro("seq", &Merge::seq)
      .def_ro("first_row", &Merge::first_row)
      .def_ro("num_rows", &Merge::num_rows)
      .def_ro("first_head", &Merge::first_head)
      .def_ro("num_heads", &Merge::num_heads)
      .def_ro("num_splits", &Merge::num_splits)
      .def_ro("partial", &Merge::partial);
  nb::class_<LaunchPlan>(m, "LaunchPlan")
      .def_prop_ro(
          "path",
          [](const LaunchPlan& p) {
            return p.path == Path::decode ? "decode" : p.path == Path::mixed ? "mixed" : "prefill";
          })
      .def_ro("tile_rows", &LaunchPlan::tile_rows)
      .def_ro("key_tile", &LaunchPlan::key_tile)
      .def_ro("keys_per_split", &LaunchPlan::keys_per_split)
      .def_ro("max_splits", &LaunchPlan::max_splits)
      .def_ro("threadgroup_memory_bytes", &LaunchPlan::threadgroup_memory_bytes)
      .def_ro("num_partials", &LaunchPlan::num_partials)
      .def_ro("tasks", &LaunchPlan::tasks)
      .def_ro("merges", &LaunchPlan::merges);
  m.def(
      "plan_launch",
      [](const std::vector<int>& seq_lens,
         const std::vector<int>& cu_seqlens_q,
         int num_q_heads,
         int num_kv_heads,
         int head_dim,
         int head_dim_v,
         std::optional<int> window,
         int num_threads,
         int64_t threadgroup_memory_bytes) {
        AttentionShape shape{num_q_heads, num_kv_heads, head_dim, head_dim_v, window.value_or(0)};
        return plan_launch(
            {num_threads, threadgroup_memory_bytes},
            shape,
            seq_lens.data(),
            cu_seqlens_q.data(),
            static_cast<int>(seq_lens.size()));
      },
      "seq_lens"_a,
      "cu_seqlens_q"_a,
      nb::kw_only(),
      "num_q_heads"_a,
      "num_kv_heads"_a,
      "head_dim"_a,
      "head_dim_v"_a,
      "window"_a = nb::none(),
      "num_threads"_a,
      "threadgroup_memory_bytes"_a);
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
  m.def("instruction_set", [] { return cpu::instruction_set(); });
  m.def(
      "set_instruction_set",
      [](const std::string& name) { cpu::set_instruction_set(name.c_str()); },
      "name"_a);
}

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
  bind_operators(m);
  bind_plan(m);
  bind_cpu(m);
  bind_testing(m.def_submodule("testing"));
}
