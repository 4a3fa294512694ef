// `_metal_on_cpu`: the shipped operators over the stand-in, its settings and what it saw.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "compiler.h"
#include "evaluation.h"
#include "gpu_model.h"
#include "gpu/shader_source.h"
#include "mlx/backend/metal/device.h"
#include "python/draw_bindings.h"
#include "python/operator_bindings.h"
#include "python/recurrent_bindings.h"
#include "python/rotate_heads_bindings.h"
#include "scripted_primitive.h"
#include "settings.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace pomona::metal_on_cpu;

namespace {

mx::Stream cpu_stream() {
  return mx::default_stream(mx::Device::cpu);
}

void bind_settings(nb::module_& m) {
  nb::class_<GpuModel>(m, "GpuModel")
      .def_rw("architecture", &GpuModel::architecture)
      .def_rw("core_count", &GpuModel::core_count)
      .def_rw("threadgroup_memory", &GpuModel::threadgroup_memory)
      .def_rw("max_threads_per_threadgroup", &GpuModel::max_threads_per_threadgroup);
  nb::class_<Settings>(m, "Settings")
      .def_rw("seed", &Settings::seed)
      .def_rw("workers", &Settings::workers)
      .def_rw("max_guarded_bytes", &Settings::max_guarded_bytes)
      .def_rw("guard_at_start", &Settings::guard_at_start)
      .def_rw("reverse_unordered", &Settings::reverse_unordered)
      .def_rw("track_loads", &Settings::track_loads);
  m.attr("gpu_model") = nb::cast(&gpu_model(), nb::rv_policy::reference);
  m.attr("settings") = nb::cast(&settings(), nb::rv_policy::reference);
  m.def("set_compiler", &set_compiler, "compiler"_a);
  m.def("set_shader_folder", &pomona::set_shader_folder, "folder"_a);
  m.def("num_kernel_searches", [] { return mx::metal::device(mx::Device::gpu).num_searches(); });
  m.def("clear_libraries", [](const std::string& folder) {
    mx::metal::device(mx::Device::gpu).clear();
    // Forgets the pipelines that the dispatch code keeps.
    pomona::set_shader_folder(folder);
  }, "folder"_a);
}

nb::dict to_dict(const DispatchRecord& record) {
  nb::dict fields;
  fields["kernel"] = record.kernel;
  fields["pipeline_key"] = record.pipeline_key;
  fields["function_constants"] = record.function_constants;
  fields["grid"] = record.grid;
  fields["threadgroup"] = record.group;
  fields["grid_is_threads"] = record.grid_is_threads;
  fields["barrier_before"] = record.barrier_before;
  fields["threadgroup_memory"] = record.threadgroup_memory;
  fields["threadgroup_bytes_used"] = record.threadgroup_bytes_used;
  fields["threadgroup_barriers"] = record.barriers;
  fields["inputs_of_slot"] = record.inputs_of_slot;
  fields["loaded_bytes"] = record.loaded_bytes;
  fields["stored_bytes"] = record.stored_bytes;
  fields["has_run"] = record.has_run;
  return fields;
}

void bind_launches(nb::module_& m) {
  m.def("take_launches", [] {
    nb::list launches;
    for (const auto& launch : take_launches()) {
      nb::list dispatches;
      for (const auto& record : launch->dispatches) {
        dispatches.append(to_dict(record));
      }
      launches.append(
          nb::make_tuple(launch->primitive, launch->counted_elements, dispatches));
    }
    return launches;
  });
  m.def("address", [](mx::array a) {
    a.eval();
    return reinterpret_cast<uintptr_t>(a.data<char>());
  });
  m.def("end_encoding", [] { mx::metal::get_command_encoder(cpu_stream()).end_encoding(); });
}

// Outputs are (shape, dtype, input whose memory it shares or -1). Commands, in the order of calls:
//   ("pipeline", library, source, kernel, key, {constant: bool, int or float})
//   ("input" | "output" | "buffer", position, slot, byte offset), ("register_output", position)
//   ("bytes", bytes, slot), ("threadgroup_memory", length, index)
//   ("temporary", input), ("scratch", bytes, slot): an output that nobody holds
//   ("barrier",), ("concurrent", 0 or 1)
//   ("dispatch_threadgroups" | "dispatch_threads", grid, threadgroup)
nb::list bound_run_script(std::vector<mx::array> inputs, nb::list outputs, nb::list commands) {
  std::vector<ScriptedOutput> described;
  for (auto output : outputs) {
    auto fields = nb::cast<nb::tuple>(output);
    auto shape = nb::cast<std::vector<int>>(fields[0]);
    described.push_back(
        {mx::Shape(shape.begin(), shape.end()),
         nb::cast<mx::Dtype>(fields[1]),
         nb::cast<int>(fields[2])});
  }
  std::vector<Command> parsed;
  for (auto command : commands) {
    parsed.push_back(parse_command(nb::cast<nb::tuple>(command)));
  }
  nb::list arrays;
  for (auto& array :
       run_script(std::move(inputs), std::move(described), std::move(parsed), cpu_stream())) {
    arrays.append(nb::cast(std::move(array)));
  }
  return arrays;
}

} // namespace

NB_MODULE(_metal_on_cpu, m) {
  pomona::bind_operators(m, mx::Device(mx::Device::cpu));
  pomona::bind_recurrent(m, mx::Device(mx::Device::cpu));
  pomona::bind_draws(m, mx::Device(mx::Device::cpu));
  pomona::bind_rotate_heads(m, mx::Device(mx::Device::cpu), pomona::rotate_heads);
  bind_settings(m);
  bind_launches(m);
  m.def("run_script", &bound_run_script, "inputs"_a, "outputs"_a, "commands"_a);
}
