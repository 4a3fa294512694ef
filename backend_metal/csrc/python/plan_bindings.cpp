#include "python/plan_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "common/constants.h"
#include "cpu/launch/launch_plan.h"
#include "gpu/launch_plan.h"
#include "attention/splits.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

namespace {

void bind_cpu_plan(nb::module_& m) {
  m.attr("KEYS_PER_SPLIT") = kKeysPerSplit;
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
         int64_t cache_bytes,
         bool one_kernel) {
        AttentionShape shape{num_q_heads, num_kv_heads, head_dim, head_dim_v, window.value_or(0)};
        return plan_launch(
            {num_threads, cache_bytes},
            shape,
            seq_lens.data(),
            cu_seqlens_q.data(),
            static_cast<int>(seq_lens.size()),
            one_kernel);
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
      "cache_bytes"_a,
      "one_kernel"_a = false);
}

void bind_gpu_plan(nb::module_& m) {
  nb::class_<GpuGrid>(m, "GpuGrid")
      .def_prop_ro(
          "threadgroups", [](const GpuGrid& g) { return std::make_tuple(g.x, g.y, g.z); })
      .def_ro("threads", &GpuGrid::threads)
      .def_ro("threadgroup_memory_bytes", &GpuGrid::threadgroup_memory_bytes);
  nb::class_<DecodePlan>(m, "DecodePlan")
      .def_ro("row_tiles", &DecodePlan::row_tiles)
      .def_ro("passes", &DecodePlan::passes)
      .def_ro("keys_per_split", &DecodePlan::keys_per_split)
      .def_ro("max_splits", &DecodePlan::max_splits)
      .def_ro("num_splits", &DecodePlan::num_splits)
      .def_ro("num_partials", &DecodePlan::num_partials)
      .def_ro("grid", &DecodePlan::grid);
  nb::class_<PrefillPlan>(m, "PrefillPlan")
      .def_ro("tile_rows", &PrefillPlan::tile_rows)
      .def_ro("key_tile", &PrefillPlan::key_tile)
      .def_ro("device_tiles", &PrefillPlan::device_tiles)
      .def_ro("keys_per_split", &PrefillPlan::keys_per_split)
      .def_ro("max_splits", &PrefillPlan::max_splits)
      .def_ro("num_splits", &PrefillPlan::num_splits)
      .def_ro("num_partials", &PrefillPlan::num_partials)
      .def_ro("grid", &PrefillPlan::grid)
      .def_ro("reduce", &PrefillPlan::reduce);
  nb::class_<GpuLaunchPlan>(m, "GpuLaunchPlan")
      .def_ro("decode", &GpuLaunchPlan::decode)
      .def_ro("reduce", &GpuLaunchPlan::reduce)
      .def_ro("prefill", &GpuLaunchPlan::prefill);
  m.def(
      "plan_gpu_launch",
      [](int num_tokens,
         int num_seqs,
         int max_context,
         int itemsize,
         int num_q_heads,
         int num_kv_heads,
         int head_dim,
         int head_dim_v,
         std::optional<int> window,
         int num_cores,
         int64_t threadgroup_memory_bytes) {
        AttentionShape shape{num_q_heads, num_kv_heads, head_dim, head_dim_v, window.value_or(0)};
        GpuBatch batch{num_tokens, num_seqs, max_context, itemsize};
        return plan_gpu_launch({num_cores, threadgroup_memory_bytes}, shape, batch);
      },
      nb::kw_only(),
      "num_tokens"_a,
      "num_seqs"_a,
      "max_context"_a,
      "itemsize"_a,
      "num_q_heads"_a,
      "num_kv_heads"_a,
      "head_dim"_a,
      "head_dim_v"_a,
      "window"_a = nb::none(),
      "num_cores"_a,
      "threadgroup_memory_bytes"_a);
  m.def(
      "row_splits",
      [](int first_key, int last_key, int keys_per_split, int max_splits) {
        auto splits = row_splits(first_key, last_key, keys_per_split, max_splits);
        return std::make_tuple(splits.length, splits.count);
      },
      "first_key"_a,
      "last_key"_a,
      "keys_per_split"_a,
      "max_splits"_a);
  m.def(
      "even_splits",
      [](int first_key, int last_key, int keys_per_split, int max_splits) {
        auto splits = even_splits(first_key, last_key, keys_per_split, max_splits);
        return std::make_tuple(splits.first_key, splits.length, splits.count);
      },
      "first_key"_a,
      "last_key"_a,
      "keys_per_split"_a,
      "max_splits"_a);
  m.def("most_splits", &most_splits, "tiles"_a, "device_tiles"_a, "max_splits"_a);
}

} // namespace

void bind_plans(nb::module_& m) {
  bind_cpu_plan(m);
  bind_gpu_plan(m);
}

} // namespace pomona
