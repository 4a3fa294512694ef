// Stands in for MLX's header of this name where there is no Metal: the same interface for the code
// that encodes dispatches, which are kept, and run later on the CPU stream by the emulator.
//
// Stricter than Metal: what it would get wrong without a word is an error here. Bindings do not
// outlive a dispatch, because MLX's hazard tracking does not either.
#pragma once

#include <Metal/Metal.hpp>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dispatch.h"
#include "mlx/array.h"
#include "mlx/backend/common/metal_kernel.h"
#include "mlx/device.h"
#include "mlx/stream.h"
#include "mlx/utils.h"

namespace mlx::core::metal {

using MTLFCList = std::vector<std::tuple<const void*, MTL::DataType, NS::UInteger>>;

class CommandEncoder {
 public:
  explicit CommandEncoder(Stream stream) : stream_(stream) {}
  CommandEncoder(const CommandEncoder&) = delete;
  CommandEncoder& operator=(const CommandEncoder&) = delete;

  // Dispatches encoded while one lives do not wait for each other.
  struct ConcurrentContext {
    explicit ConcurrentContext(CommandEncoder& encoder);
    ~ConcurrentContext();

   private:
    CommandEncoder& encoder_;
  };

  ConcurrentContext start_concurrent() {
    return ConcurrentContext(*this);
  }

  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel);
  void set_buffer(const MTL::Buffer* buffer, int index, int64_t offset = 0);
  void set_input_array(const array& a, int index, int64_t offset = 0);
  void set_output_array(array& a, int index, int64_t offset = 0);
  void register_output_array(const array& a);
  void set_threadgroup_memory_length(size_t length, int index);

  template <typename T>
  void set_bytes(const T* values, int count, int index) {
    set_raw_bytes(values, count * sizeof(T), index);
  }
  template <typename T>
  void set_bytes(const T& value, int index) {
    set_raw_bytes(&value, sizeof(T), index);
  }
  template <typename Vec, typename = std::enable_if_t<is_vector_v<Vec>>>
  void set_vector_bytes(const Vec& values, size_t count, int index) {
    typename Vec::value_type none{};
    set_raw_bytes(
        count ? values.data() : &none,
        std::max<size_t>(count, 1) * sizeof(typename Vec::value_type),
        index);
  }
  template <typename Vec, typename = std::enable_if_t<is_vector_v<Vec>>>
  void set_vector_bytes(const Vec& values, int index) {
    set_vector_bytes(values, values.size(), index);
  }

  // Always refused: MLX stops tracking a buffer between encoders once it was a temporary.
  void add_temporary(array a);
  void add_temporaries(std::vector<array> arrays);

  void dispatch_threadgroups(MTL::Size grid, MTL::Size group);
  void dispatch_threads(MTL::Size grid, MTL::Size group);
  void maybeInsertBarrier();
  void barrier();
  void end_encoding();

  // Of the arrays that a launch is the first to bind in this encoder: MLX commits a command buffer
  // when they are many.
  size_t counted_elements() const;
  // What has been dispatched since the last call.
  std::vector<pomona::metal_on_cpu::Dispatch> take_dispatches();
  // As when an evaluation failed half way.
  void discard();

 private:
  void set_raw_bytes(const void* bytes, size_t size, int index);
  void declare(pomona::metal_on_cpu::Binding& binding, int index) const;
  void dispatch(MTL::Size grid, MTL::Size group, bool grid_is_threads);

  Stream stream_;
  MTL::ComputePipelineState* pipeline_ = nullptr;
  std::map<int, pomona::metal_on_cpu::Binding> bindings_;
  std::map<int, size_t> threadgroup_memory_;
  pomona::metal_on_cpu::BufferSet declared_outputs_; // for the next dispatch
  pomona::metal_on_cpu::BufferSet launch_memory_; // of all dispatches of the launch
  pomona::metal_on_cpu::BufferSet launch_outputs_;
  size_t counted_elements_ = 0;
  std::vector<pomona::metal_on_cpu::Dispatch> dispatches_;

  bool explicit_barrier_ = false;
  bool needs_barrier_ = false;
  bool concurrent_ = false;
  pomona::metal_on_cpu::BufferSet prev_inputs_;
  pomona::metal_on_cpu::BufferSet prev_outputs_;
  pomona::metal_on_cpu::BufferSet next_inputs_;
  pomona::metal_on_cpu::BufferSet next_outputs_;
  pomona::metal_on_cpu::BufferSet concurrent_outputs_;
  std::unordered_set<const void*> met_buffers_;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  MTL::Device* mtl_device() {
    return &mtl_device_;
  }
  const std::string& get_architecture() const;
  int get_architecture_gen() const;

  // Raises when a name stands for two texts: MLX would go on using the first.
  MTL::Library* get_library(
      const std::string& name,
      const CompileOptions& options,
      const std::function<std::string()>& builder);
  MTL::Library* get_library(const std::string& name, const std::function<std::string()>& builder) {
    return get_library(name, {}, builder);
  }
  void clear_library(const std::string& name);

  // Raises when a name stands for two specialisations: MLX would go on using the first.
  MTL::ComputePipelineState* get_kernel(
      const std::string& base_name,
      MTL::Library* library,
      const std::string& hash_name = "",
      const MTLFCList& function_constants = {});

  // Forgets what was compiled, which the next use compiles again.
  void clear();
  // How often a kernel was asked for, which on a Mac is a search by name under a lock.
  int num_searches() const {
    return num_searches_;
  }

 private:
  MTL::Device mtl_device_;
  std::atomic<int> num_searches_ = 0;
  std::map<std::string, MTL::Library*> libraries_;
  std::map<MTL::Library*, std::map<std::string, MTL::ComputePipelineState*>> kernels_;
  // Never freed: dispatches that wait on a stream point to them.
  std::vector<std::unique_ptr<MTL::Library>> kept_libraries_;
  std::vector<std::unique_ptr<MTL::ComputePipelineState>> kept_pipelines_;
};

Device& device(mlx::core::Device);
CommandEncoder& get_command_encoder(Stream stream);

} // namespace mlx::core::metal
