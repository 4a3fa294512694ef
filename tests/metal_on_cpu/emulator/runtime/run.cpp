// metal_emulator_run: checks a dispatch, guards its buffers, and shares it between workers.
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "worker.h"

namespace metal_emulator {
namespace {

constexpr char kUnset = static_cast<char>(0xaa); // no valid bool

std::mutex allocations_mutex;
std::map<const void*, GuardedMemory>& allocations() {
  static std::map<const void*, GuardedMemory> all;
  return all;
}

// What the kernel sees of one caller's buffer.
struct GuardedCopy {
  GuardedMemory memory;
  char* source;
};

class Run {
 public:
  Run(const metal_emulator_dispatch& request, metal_emulator_result& result)
      : request_(request), result_(result) {}

  bool operator()();

 private:
  __attribute__((format(printf, 2, 3))) bool refuse(const char* format, ...);
  bool find_kernel();
  bool set_constants();
  bool set_sizes();
  bool bind_buffers();
  bool is_required(const metal_emulator_parameter& parameter) const;
  bool check_aliases();
  void bind_copy(int index);
  void protect_constant_buffers(bool protect);
  bool finish_copies();

  const metal_emulator_dispatch& request_;
  metal_emulator_result& result_;
  Dispatch dispatch_;
  bool writable_[METAL_EMULATOR_MAX_BUFFERS] = {};
  bool used_[METAL_EMULATOR_MAX_BUFFERS] = {};
  std::vector<GuardedCopy> copies_;
};

bool Run::refuse(const char* format, ...) {
  int used = std::snprintf(result_.error, METAL_EMULATOR_ERROR_BYTES, "%s: ", request_.kernel);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(result_.error + used, METAL_EMULATOR_ERROR_BYTES - used, format, arguments);
  va_end(arguments);
  return false;
}

bool Run::find_kernel() {
  for (int i = 0; i < metal_emulator_num_kernels(); i++) {
    if (!std::strcmp(metal_emulator_get_kernel(i)->name, request_.kernel)) {
      dispatch_.kernel = metal_emulator_get_kernel(i);
      return true;
    }
  }
  return refuse("no such kernel");
}

bool Run::set_constants() {
  for (int i = 0; i < metal_emulator_num_constants(); i++) {
    const metal_emulator_constant* constant = metal_emulator_get_constant(i);
    std::memset(constant->storage, kUnset, constant->size);
    *constant->defined = 0;
  }
  for (int v = 0; v < request_.num_constants; v++) {
    const auto& value = request_.constants[v];
    bool found = false;
    for (int i = 0; i < metal_emulator_num_constants(); i++) {
      const metal_emulator_constant* constant = metal_emulator_get_constant(i);
      if (constant->index == value.index) {
        std::memcpy(constant->storage, &value.bits, constant->size);
        *constant->defined = 1;
        found = true;
      }
    }
    if (!found) {
      return refuse("no function_constant(%d)", value.index);
    }
  }
  return true;
}

bool Run::set_sizes() {
  uint64_t threads = 1;
  dispatch_.num_threadgroups = 1;
  for (int i = 0; i < 3; i++) {
    uint32_t size = request_.threadgroup[i];
    threads *= size;
    if (!size || !request_.grid[i]) {
      return refuse("an empty grid or threadgroup");
    }
    dispatch_.threadgroup[i] = size;
    dispatch_.grid[i] =
        request_.grid_is_threads ? (request_.grid[i] + size - 1) / size : request_.grid[i];
    dispatch_.threads[i] = request_.grid_is_threads ? request_.grid[i] : request_.grid[i] * size;
    dispatch_.num_threadgroups *= dispatch_.grid[i];
  }
  if (threads > METAL_EMULATOR_MAX_THREADS) {
    return refuse(
        "a threadgroup of %llu threads, more than %d",
        static_cast<unsigned long long>(threads),
        METAL_EMULATOR_MAX_THREADS);
  }
  std::memcpy(
      dispatch_.threadgroup_memory,
      request_.threadgroup_memory,
      sizeof dispatch_.threadgroup_memory);
  dispatch_.seed = request_.seed;
  dispatch_.guard_at_start = request_.guard_at_start;
  dispatch_.result = &result_;
  return true;
}

bool Run::is_required(const metal_emulator_parameter& parameter) const {
  if (parameter.required) {
    return true;
  }
  for (int i = 0; i < metal_emulator_num_constants(); i++) {
    const metal_emulator_constant* constant = metal_emulator_get_constant(i);
    if (constant->index == parameter.constant && *constant->defined) {
      return *static_cast<const char*>(constant->storage) != 0;
    }
  }
  return false;
}

bool Run::bind_buffers() {
  const metal_emulator_kernel& kernel = *dispatch_.kernel;
  for (int p = 0; p < kernel.num_parameters; p++) {
    const metal_emulator_parameter& parameter = kernel.parameters[p];
    if (parameter.kind == METAL_EMULATOR_BUFFER) {
      if (!request_.buffers[parameter.index].data && is_required(parameter)) {
        return refuse("buffer(%d) is not bound", parameter.index);
      }
      used_[parameter.index] = true;
      writable_[parameter.index] = parameter.writable;
    } else if (parameter.kind == METAL_EMULATOR_THREADGROUP_MEMORY) {
      size_t size = request_.threadgroup_memory[parameter.index];
      if (size == 0 || size % 16) {
        return refuse(
            "threadgroup(%d) has %zu bytes, not a multiple of 16", parameter.index, size);
      }
    }
  }
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const metal_emulator_buffer& buffer = request_.buffers[i];
    if (!buffer.data) {
      continue;
    }
    if (!used_[i]) {
      return refuse("buffer(%d) is bound but the kernel has no such parameter", i);
    }
    if (buffer.copy) {
      bind_copy(i);
    } else {
      dispatch_.buffers[i] = {
          static_cast<char*>(buffer.data), buffer.size, false, find_allocation(buffer.data)};
    }
    dispatch_.buffers[i].track = buffer.track;
  }
  return check_aliases();
}

void Run::bind_copy(int index) {
  const metal_emulator_buffer& buffer = request_.buffers[index];
  auto* source = static_cast<char*>(buffer.data);
  copies_.push_back({GuardedMemory(buffer.size, request_.guard_at_start), source});
  GuardedMemory& memory = copies_.back().memory;
  std::memcpy(memory.data(), source, buffer.size);
  dispatch_.buffers[index] = {memory.data(), buffer.size, false, &memory};
}

// Metal's compiler assumes that what is reached through one argument is not written through
// another, so memory that a kernel writes may be bound once only.
bool Run::check_aliases() {
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    for (int j = 0; j < METAL_EMULATOR_MAX_BUFFERS; j++) {
      const metal_emulator_buffer& a = request_.buffers[i];
      const metal_emulator_buffer& b = request_.buffers[j];
      if (i == j || !a.data || !b.data || !writable_[i]) {
        continue;
      }
      auto* a_begin = static_cast<char*>(a.data);
      auto* b_begin = static_cast<char*>(b.data);
      if (a_begin < b_begin + b.size && b_begin < a_begin + a.size) {
        return refuse("buffer(%d), which may be written, shares memory with buffer(%d)", i, j);
      }
    }
  }
  return true;
}

void Run::protect_constant_buffers(bool protect) {
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const GuardedMemory* guard = dispatch_.buffers[i].guard;
    if (!guard || writable_[i]) {
      continue;
    }
    bool written_elsewhere = false;
    for (int j = 0; j < METAL_EMULATOR_MAX_BUFFERS; j++) {
      written_elsewhere |= writable_[j] && dispatch_.buffers[j].guard == guard;
    }
    if (!written_elsewhere) {
      guard->set_writable(!protect);
    }
  }
}

bool Run::finish_copies() {
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const BoundBuffer& buffer = dispatch_.buffers[i];
    if (!buffer.data || !buffer.guard) {
      continue;
    }
    if (int64_t offset = buffer.guard->overwritten_slack()) {
      return refuse(
          "illegal write: buffer(%d) of %zu bytes at byte offset %lld",
          i,
          buffer.size,
          static_cast<long long>(offset));
    }
    if (request_.buffers[i].copy && writable_[i]) {
      std::memcpy(request_.buffers[i].data, buffer.data, buffer.size);
    }
  }
  return true;
}

bool Run::operator()() {
  copies_.reserve(METAL_EMULATOR_MAX_BUFFERS);
  if (!find_kernel() || !set_constants() || !set_sizes() || !bind_buffers()) {
    return false;
  }
  install_fault_handlers();
  protect_constant_buffers(true);
  int workers = request_.workers;
#ifdef METAL_EMULATOR_TSAN
  workers = 1; // fibers of one host thread are enough to see races
#endif
  auto work = [this](int number) {
    // Faults on a fiber's stack are handled on this one.
    std::vector<char> signal_stack(64 * 1024);
    stack_t stack = {};
    stack.ss_sp = signal_stack.data();
    stack.ss_size = signal_stack.size();
    stack_t old_stack;
    sigaltstack(&stack, &old_stack);
    Worker(dispatch_, number).run();
    sigaltstack(&old_stack, nullptr);
  };
  if (workers <= 1) {
    work(0);
  } else {
    std::vector<std::thread> threads;
    for (int i = 0; i < workers; i++) {
      threads.emplace_back(work, i);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  protect_constant_buffers(false);
  result_.threadgroup_barriers = dispatch_.threadgroup_barriers;
  result_.simdgroup_barriers = dispatch_.simdgroup_barriers;
  result_.threadgroup_bytes = dispatch_.threadgroup_bytes;
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    result_.loaded[i] = dispatch_.loaded[i];
    result_.stored[i] = dispatch_.stored[i];
  }
  return !dispatch_.failed && finish_copies();
}

} // namespace

const GuardedMemory* find_allocation(const void* address) {
  std::lock_guard lock(allocations_mutex);
  for (const auto& [data, memory] : allocations()) {
    if (memory.surrounds(address)) {
      return &memory;
    }
  }
  return nullptr;
}

} // namespace metal_emulator

using metal_emulator::GuardedMemory;

void* metal_emulator_allocate(size_t size, int at_start) {
  GuardedMemory memory(size, at_start);
  void* data = memory.data();
  std::lock_guard lock(metal_emulator::allocations_mutex);
  metal_emulator::allocations().emplace(data, std::move(memory));
  return data;
}

void metal_emulator_free(void* data) {
  std::lock_guard lock(metal_emulator::allocations_mutex);
  metal_emulator::allocations().erase(data);
}

int metal_emulator_run(const metal_emulator_dispatch* dispatch, metal_emulator_result* result) {
  // Function constants are variables of the library.
  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  std::memset(result, 0, sizeof *result);
  return metal_emulator::Run(*dispatch, *result)() ? 0 : 1;
}
