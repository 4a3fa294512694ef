// Encoding, with MLX's hazard tracking.
#include "dispatch_checks.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"
#include "refuse.h"

namespace mlx::core::metal {

using pomona::metal_on_cpu::Binding;
using pomona::metal_on_cpu::Dispatch;
using pomona::metal_on_cpu::is_written_by;
using pomona::metal_on_cpu::Memory;
using pomona::metal_on_cpu::refuse;

namespace {

// The argument tables of a compute encoder.
constexpr int kMaxBuffers = 31;
constexpr int kMaxThreadgroupArguments = 31;
constexpr size_t kMaxBytes = 4096;
constexpr size_t kThreadgroupMemoryAlignment = 16;

Memory memory_of(const array& a) {
  auto buffer = a.buffer();
  // Memory that MLX did not allocate has no size on record: only what the array shows is known.
  size_t size = a.data_shared_ptr()->is_owned()
      ? a.buffer_size()
      : a.offset() + a.data_size() * a.itemsize();
  return {buffer.ptr(), static_cast<char*>(buffer.raw_ptr()), size, a.data_shared_ptr()};
}

void check_index(int index) {
  if (index < 0 || index >= kMaxBuffers) {
    refuse("buffer index " + std::to_string(index) + " is not below " +
           std::to_string(kMaxBuffers));
  }
}

void check_offset(const Binding& binding, int index) {
  if (binding.offset < 0 || static_cast<size_t>(binding.offset) > binding.memory.size) {
    refuse("offset " + std::to_string(binding.offset) + " of buffer(" + std::to_string(index) +
           ") lies outside its " + std::to_string(binding.memory.size) + " bytes");
  }
}

std::array<unsigned, 3> to_array(MTL::Size size) {
  return {unsigned(size.width), unsigned(size.height), unsigned(size.depth)};
}

} // namespace

CommandEncoder::ConcurrentContext::ConcurrentContext(CommandEncoder& encoder) : encoder_(encoder) {
  encoder_.concurrent_ = true;
}

CommandEncoder::ConcurrentContext::~ConcurrentContext() {
  encoder_.concurrent_ = false;
  encoder_.prev_outputs_.insert(encoder_.concurrent_outputs_);
  encoder_.concurrent_outputs_.clear();
}

void CommandEncoder::set_compute_pipeline_state(MTL::ComputePipelineState* kernel) {
  pipeline_ = kernel;
}

void CommandEncoder::set_buffer(const MTL::Buffer* buffer, int index, int64_t offset) {
  check_index(index);
  auto* pointer = const_cast<void*>(static_cast<const void*>(buffer));
  allocator::Buffer allocation(pointer);
  met_buffers_.insert(pointer);
  Binding binding;
  binding.memory = {
      pointer,
      static_cast<char*>(allocation.raw_ptr()),
      allocator::allocator().size(allocation),
      {}};
  binding.offset = offset;
  binding.is_untracked = true;
  check_offset(binding, index);
  bindings_[index] = std::move(binding);
}

void CommandEncoder::set_input_array(const array& a, int index, int64_t offset) {
  check_index(index);
  Binding binding;
  binding.memory = memory_of(a);
  binding.offset = a.offset() + offset;
  check_offset(binding, index);
  if (met_buffers_.insert(binding.memory.id).second) {
    counted_elements_ += a.data_size();
  }
  next_inputs_.insert(binding.memory);
  launch_memory_.insert(binding.memory);
  needs_barrier_ |= prev_outputs_.contains(binding.memory);
  bindings_[index] = std::move(binding);
}

void CommandEncoder::set_output_array(array& a, int index, int64_t offset) {
  set_input_array(a, index, offset);
  register_output_array(a);
}

void CommandEncoder::register_output_array(const array& a) {
  Memory memory = memory_of(a);
  declared_outputs_.insert(memory);
  launch_memory_.insert(memory);
  launch_outputs_.insert(memory);
  if (concurrent_) {
    concurrent_outputs_.insert(memory);
  } else {
    next_outputs_.insert(memory);
    needs_barrier_ |= prev_inputs_.contains(memory);
  }
}

void CommandEncoder::set_threadgroup_memory_length(size_t length, int index) {
  if (index < 0 || index >= kMaxThreadgroupArguments) {
    refuse("threadgroup index " + std::to_string(index) + " is not below " +
           std::to_string(kMaxThreadgroupArguments));
  }
  if (length == 0 || length % kThreadgroupMemoryAlignment) {
    refuse("threadgroup memory of " + std::to_string(length) + " bytes is not a multiple of 16");
  }
  threadgroup_memory_[index] = length;
}

void CommandEncoder::set_raw_bytes(const void* bytes, size_t size, int index) {
  check_index(index);
  if (size > kMaxBytes) {
    refuse("set_bytes takes at most 4096 bytes, not " + std::to_string(size));
  }
  Binding binding;
  auto* first = static_cast<const char*>(bytes);
  binding.bytes.assign(first, first + size);
  bindings_[index] = std::move(binding);
}

void CommandEncoder::add_temporary(array) {
  refuse("add_temporary ends the tracking of a buffer between command encoders");
}

void CommandEncoder::add_temporaries(std::vector<array>) {
  refuse("add_temporaries ends the tracking of buffers between command encoders");
}

void CommandEncoder::dispatch_threadgroups(MTL::Size grid, MTL::Size group) {
  dispatch(grid, group, false);
}

void CommandEncoder::dispatch_threads(MTL::Size grid, MTL::Size group) {
  dispatch(grid, group, true);
}

// MLX orders nothing by a buffer that is bound by itself: the launch has to have declared it before,
// as an output if a kernel writes it.
void CommandEncoder::declare(Binding& binding, int index) const {
  if (!binding.is_untracked) {
    binding.written = declared_outputs_.contains(binding.memory);
    return;
  }
  const auto* owner = launch_memory_.find(binding.memory.id);
  if (!owner) {
    refuse(pipeline_->kernel + ": buffer(" + std::to_string(index) +
           ") is bound by itself, and has not been declared");
  }
  binding.memory.owner = *owner;
  binding.written =
      launch_outputs_.contains(binding.memory) && is_written_by(*pipeline_, index);
}

void CommandEncoder::dispatch(MTL::Size grid, MTL::Size group, bool grid_is_threads) {
  if (!pipeline_) {
    refuse("a dispatch without a pipeline state");
  }
  for (auto& [index, binding] : bindings_) {
    if (!binding.is_bytes()) {
      declare(binding, index);
    }
  }
  pomona::metal_on_cpu::check_dispatch(
      *pipeline_, bindings_, threadgroup_memory_, grid, group);
  Dispatch dispatch;
  dispatch.pipeline = pipeline_;
  dispatch.bindings = std::move(bindings_);
  dispatch.threadgroup_memory = std::move(threadgroup_memory_);
  dispatch.grid = to_array(grid);
  dispatch.group = to_array(group);
  dispatch.grid_is_threads = grid_is_threads;
  dispatch.barrier_before = needs_barrier_ || explicit_barrier_;
  explicit_barrier_ = false;
  maybeInsertBarrier();
  dispatches_.push_back(std::move(dispatch));
  bindings_.clear();
  threadgroup_memory_.clear();
  declared_outputs_.clear();
}

void CommandEncoder::maybeInsertBarrier() {
  if (needs_barrier_) {
    needs_barrier_ = false;
    prev_inputs_.swap(next_inputs_);
    prev_outputs_.swap(next_outputs_);
  } else {
    prev_inputs_.insert(next_inputs_);
    prev_outputs_.insert(next_outputs_);
  }
  next_inputs_.clear();
  next_outputs_.clear();
}

void CommandEncoder::barrier() {
  explicit_barrier_ = true;
}

void CommandEncoder::end_encoding() {
  discard();
  prev_inputs_.clear();
  prev_outputs_.clear();
  met_buffers_.clear();
}

size_t CommandEncoder::counted_elements() const {
  return counted_elements_;
}

std::vector<Dispatch> CommandEncoder::take_dispatches() {
  bool is_open = !bindings_.empty();
  auto dispatches = std::move(dispatches_);
  discard();
  if (is_open) {
    refuse("arguments were set, and nothing dispatched with them");
  }
  return dispatches;
}

void CommandEncoder::discard() {
  pipeline_ = nullptr;
  bindings_.clear();
  threadgroup_memory_.clear();
  declared_outputs_.clear();
  launch_memory_.clear();
  launch_outputs_.clear();
  counted_elements_ = 0;
  dispatches_.clear();
  explicit_barrier_ = needs_barrier_ = false;
  next_inputs_.clear();
  next_outputs_.clear();
}

CommandEncoder& get_command_encoder(Stream stream) {
  static thread_local std::unordered_map<int, CommandEncoder> encoders;
  return encoders.try_emplace(stream.index, stream).first->second;
}

} // namespace mlx::core::metal
