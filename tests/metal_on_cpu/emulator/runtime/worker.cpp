#include "worker.h"

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include <immintrin.h>

#ifdef METAL_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#else
#define __tsan_acquire(address) ((void)(address))
#define __tsan_release(address) ((void)(address))
#endif

namespace metal_emulator {
namespace {

thread_local Worker* current_worker = nullptr;

// Apple's compiler is told that denormals are flushed; the same here.
constexpr unsigned kFlushDenormals = 0x8040;

constexpr uint64_t kDynamicMemoryKey = uint64_t{1} << 32;

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

} // namespace

Worker::Worker(Dispatch& dispatch, uint32_t number)
    : dispatch_(dispatch),
      memory_(dispatch.guard_at_start),
      accesses_(dispatch, memory_),
      random_(dispatch.seed * 7919u + number + 1) {}

Worker& Worker::current() {
  return *current_worker;
}

Worker* Worker::current_or_null() {
  return current_worker;
}

void Worker::run() {
  current_worker = this;
  main_.adopt_thread();
  __tsan_release(&dispatch_.start_sync);
  unsigned control = _mm_getcsr();
  _mm_setcsr(control | kFlushDenormals);
  if (sigsetjmp(on_fault_, 1) == 0) {
    while (!dispatch_.failed) {
      uint64_t number = dispatch_.next_threadgroup++;
      if (number >= dispatch_.num_threadgroups) {
        break;
      }
      bool backwards = dispatch_.seed == 1;
      run_threadgroup(backwards ? dispatch_.num_threadgroups - 1 - number : number);
    }
  }
  _mm_setcsr(control);
  __tsan_acquire(&dispatch_.end_sync);
  dispatch_.threadgroup_barriers += threadgroup_barriers_;
  dispatch_.simdgroup_barriers += simdgroup_barriers_;
  current_worker = nullptr;
}

void Worker::run_threadgroup(uint64_t number) {
  position_[0] = number % dispatch_.grid[0];
  position_[1] = number / dispatch_.grid[0] % dispatch_.grid[1];
  position_[2] = number / dispatch_.grid[0] / dispatch_.grid[1];
  for (int i = 0; i < 3; i++) {
    // Threadgroups at the edge of a grid given in threads are smaller.
    uint32_t left = dispatch_.threads[i] - position_[i] * dispatch_.threadgroup[i];
    size_[i] = std::min(left, dispatch_.threadgroup[i]);
  }
  num_threads_ = size_[0] * size_[1] * size_[2];
  num_returned_ = num_at_barrier_ = 0;
#ifdef METAL_EMULATOR_TSAN
  thread_set_ ^= 1;
#endif
  auto& threads = this->threads();
  threads.resize(num_threads_);
  simdgroups_.resize((num_threads_ + kSimdWidth - 1) / kSimdWidth);
  for (uint32_t i = 0; i < simdgroups_.size(); i++) {
    Simdgroup& group = simdgroups_[i];
    group.first_thread = i * kSimdWidth;
    group.num_lanes = group.ready = std::min(kSimdWidth, num_threads_ - group.first_thread);
    group.arrived = group.at_barrier = group.returned = group.meetings = 0;
  }
  memory_.begin_threadgroup();
  for (uint32_t t = 0; t < num_threads_; t++) {
    GpuThread& thread = threads[t];
    thread.index = t;
    thread.lane = t % kSimdWidth;
    thread.simdgroup = t / kSimdWidth;
    thread.state = ThreadState::ready;
    thread_ = &thread;
    uint32_t position[3] = {t % size_[0], t / size_[0] % size_[1], t / size_[0] / size_[1]};
    bind_arguments(thread, position);
    thread.fiber.prepare(&Worker::thread_entry);
  }
  thread_ = nullptr;
  thread_ = next_ready();
  on_fiber_ = true;
  main_.switch_to(thread_->fiber);
  on_fiber_ = false;
  ThreadgroupMemory::Place place;
  if (!dispatch_.failed && memory_.find_overwritten(place)) {
    thread_ = &threads[0];
    char text[256];
    std::snprintf(
        text,
        sizeof text,
        "threadgroup memory was written at byte offset %lld of a variable of %zu bytes",
        static_cast<long long>(place.offset),
        place.size);
    record_error(text);
  }
  accesses_.finish_threadgroup(dispatch_.loaded, dispatch_.stored);
  uint64_t used = memory_.used();
  uint64_t most = dispatch_.threadgroup_bytes;
  while (used > most && !dispatch_.threadgroup_bytes.compare_exchange_weak(most, used)) {
  }
}

void Worker::bind_arguments(GpuThread& thread, const uint32_t* position) {
  // What an unbound reference points to: the compiler may load through it before it is needed.
  alignas(64) static char unbound[4096];
  const metal_emulator_kernel& kernel = *dispatch_.kernel;
  thread.arguments.resize(kernel.num_parameters);
  for (int p = 0; p < kernel.num_parameters; p++) {
    const metal_emulator_parameter& parameter = kernel.parameters[p];
    Argument& argument = thread.arguments[p];
    auto set = [&](uint32_t x, uint32_t y = 0, uint32_t z = 0) {
      argument.value[0] = x;
      argument.value[1] = y;
      argument.value[2] = z;
    };
    auto set_vector = [&](const uint32_t* v) { set(v[0], v[1], v[2]); };
    switch (parameter.kind) {
      case METAL_EMULATOR_BUFFER: {
        char* data = dispatch_.buffers[parameter.index].data;
        argument.pointer =
            reinterpret_cast<uint64_t>(!data && parameter.reference ? unbound : data);
        break;
      }
      case METAL_EMULATOR_THREADGROUP_MEMORY:
        argument.pointer = reinterpret_cast<uint64_t>(threadgroup_variable(
            kDynamicMemoryKey + parameter.index, dispatch_.threadgroup_memory[parameter.index]));
        break;
      case METAL_EMULATOR_THREADGROUP_POSITION_IN_GRID:
        set_vector(position_);
        break;
      case METAL_EMULATOR_THREADGROUPS_PER_GRID:
        set_vector(dispatch_.grid);
        break;
      case METAL_EMULATOR_THREAD_POSITION_IN_THREADGROUP:
        set_vector(position);
        break;
      case METAL_EMULATOR_THREAD_POSITION_IN_GRID:
        set(position_[0] * dispatch_.threadgroup[0] + position[0],
            position_[1] * dispatch_.threadgroup[1] + position[1],
            position_[2] * dispatch_.threadgroup[2] + position[2]);
        break;
      case METAL_EMULATOR_THREADS_PER_THREADGROUP:
        set_vector(size_);
        break;
      case METAL_EMULATOR_THREADS_PER_GRID:
        set_vector(dispatch_.threads);
        break;
      case METAL_EMULATOR_THREAD_INDEX_IN_THREADGROUP:
        set(thread.index);
        break;
      case METAL_EMULATOR_THREAD_INDEX_IN_SIMDGROUP:
        set(thread.lane);
        break;
      case METAL_EMULATOR_SIMDGROUP_INDEX_IN_THREADGROUP:
        set(thread.simdgroup);
        break;
      case METAL_EMULATOR_SIMDGROUPS_PER_THREADGROUP:
        set(static_cast<uint32_t>(simdgroups_.size()));
        break;
      case METAL_EMULATOR_THREADS_PER_SIMDGROUP:
        set(kSimdWidth);
        break;
      case METAL_EMULATOR_QUADGROUP_INDEX_IN_THREADGROUP:
        set(thread.index / 4);
        break;
      case METAL_EMULATOR_THREAD_INDEX_IN_QUADGROUP:
        set(thread.index % 4);
        break;
    }
  }
}

void Worker::thread_entry() {
  Worker& worker = current();
  __tsan_acquire(&worker.dispatch_.start_sync);
  worker.dispatch_.kernel->entry(
      reinterpret_cast<uint64_t>(worker.thread_->arguments.data()));
  __tsan_release(&worker.dispatch_.end_sync);
  worker.finish_thread();
}

void Worker::finish_thread() {
  Simdgroup& group = simdgroup();
  if (group.arrived) {
    fail(
        "divergence: the thread returned while %u lane(s) of its simdgroup wait in %s at %s:%u",
        group.arrived,
        group.site.operation,
        base_name(group.site.file),
        group.site.line);
  }
  thread_->state = ThreadState::returned;
  group.returned++;
  group.ready--;
  num_returned_++;
  yield();
  __builtin_unreachable();
}

void Worker::yield() {
  GpuThread* from = thread_;
  GpuThread* next = next_ready();
  thread_ = next;
  from->fiber.switch_to(next ? next->fiber : main_);
}

GpuThread* Worker::next_lane(Simdgroup& group, uint32_t start, bool backwards) {
  for (uint32_t i = 0; i < group.num_lanes; i++) {
    uint32_t step = backwards ? group.num_lanes - i : i;
    GpuThread& thread = threads()[group.first_thread + (start + step) % group.num_lanes];
    if (thread.state == ThreadState::ready) {
      return &thread;
    }
  }
  return nullptr;
}

GpuThread* Worker::next_ready() {
  const bool backwards = dispatch_.seed == 1;
  const bool shuffled = dispatch_.seed > 1;
  for (;;) {
    // Stay in the simdgroup while it can run, except that a shuffled schedule leaves at times.
    if (thread_ && !(shuffled && random_() % 8 == 0)) {
      Simdgroup& group = simdgroup();
      if (group.ready) {
        uint32_t start = shuffled ? random_() : thread_->lane + (backwards ? group.num_lanes - 1 : 1);
        return next_lane(group, start % group.num_lanes, backwards);
      }
    }
    const uint32_t count = static_cast<uint32_t>(simdgroups_.size());
    uint32_t first = thread_ ? thread_->simdgroup + (backwards ? count - 1 : 1)
                             : (backwards ? count - 1 : 0);
    if (shuffled) {
      first = random_();
    }
    for (uint32_t i = 0; i < count; i++) {
      Simdgroup& group = simdgroups_[(first % count + (backwards ? count - i : i)) % count];
      if (group.ready) {
        uint32_t start = shuffled ? random_() % group.num_lanes : backwards ? group.num_lanes - 1 : 0;
        return next_lane(group, start, backwards);
      }
    }
    if (num_returned_ == num_threads_) {
      return nullptr;
    }
    if (num_at_barrier_ + num_returned_ < num_threads_) {
      fail("deadlock: %u threads returned, %u wait at a barrier", num_returned_, num_at_barrier_);
    }
    if (num_returned_) {
      auto waiting = std::find_if(threads().begin(), threads().end(), [](const GpuThread& t) {
        return t.state == ThreadState::at_barrier;
      });
      fail(
          "divergence: threadgroup_barrier at %s:%u reached by %u threads while %u have returned",
          base_name(waiting->site.file),
          waiting->site.line,
          num_at_barrier_,
          num_returned_);
    }
    release_barrier();
  }
}

void Worker::release_barrier() {
  for (Simdgroup& group : simdgroups_) {
    group.ready = group.at_barrier;
    group.at_barrier = 0;
  }
  for (GpuThread& thread : threads()) {
    thread.state = ThreadState::ready;
  }
  num_at_barrier_ = 0;
  barriers_++;
  threadgroup_barriers_++;
}

bool Worker::meet_simdgroup(const Site& site) {
  Simdgroup& group = simdgroup();
  if (group.at_barrier || group.returned) {
    fail(
        "divergence: %s at %s:%u while %u lane(s) of the simdgroup are at a threadgroup_barrier "
        "and %u have returned",
        site.operation,
        base_name(site.file),
        site.line,
        group.at_barrier,
        group.returned);
  }
  if (!group.arrived) {
    group.site = site;
  } else if (!(group.site == site)) {
    fail(
        "divergence: %s at %s:%u while %u lane(s) wait in %s at %s:%u",
        site.operation,
        base_name(site.file),
        site.line,
        group.arrived,
        group.site.operation,
        base_name(group.site.file),
        group.site.line);
  }
  group.arrived++;
  if (group.arrived < group.num_lanes) {
    thread_->state = ThreadState::at_simd_operation;
    group.ready--;
    yield();
    return false;
  }
  for (uint32_t i = 0; i < group.num_lanes; i++) {
    threads()[group.first_thread + i].state = ThreadState::ready;
  }
  group.ready = group.num_lanes;
  group.arrived = 0;
  group.meetings++;
  return true;
}

void Worker::simdgroup_barrier(const Site& site, bool orders_memory) {
  // Two objects in turn: with one, a lane early at the next barrier would order a late waker.
  char* sync = simdgroup().current_slots();
  if (orders_memory) {
    __tsan_release(sync);
  }
  if (meet_simdgroup(site)) {
    simdgroup_barriers_++;
  }
  if (orders_memory) {
    __tsan_acquire(sync);
  }
}

void Worker::threadgroup_barrier(const Site& site, bool orders_memory) {
  Simdgroup& group = simdgroup();
  if (group.arrived) {
    fail(
        "divergence: threadgroup_barrier at %s:%u while %u lane(s) of the simdgroup wait in %s at "
        "%s:%u",
        base_name(site.file),
        site.line,
        group.arrived,
        group.site.operation,
        base_name(group.site.file),
        group.site.line);
  }
  for (const GpuThread& other : threads()) {
    if (!num_at_barrier_) {
      break;
    }
    if (other.state == ThreadState::at_barrier) {
      if (!(other.site == site)) {
        fail(
            "divergence: threadgroup_barrier at %s:%u while thread %u waits at the one in %s:%u",
            base_name(site.file),
            site.line,
            other.index,
            base_name(other.site.file),
            other.site.line);
      }
      break;
    }
  }
  char* sync = barrier_sync_[barriers_ % 2];
  if (orders_memory) {
    __tsan_release(sync);
  }
  thread_->site = site;
  thread_->state = ThreadState::at_barrier;
  group.at_barrier++;
  group.ready--;
  num_at_barrier_++;
  yield();
  if (orders_memory) {
    __tsan_acquire(sync);
  }
}

void* Worker::threadgroup_variable(uint64_t key, size_t size) {
  char* data = memory_.variable(key, size);
  if (memory_.used() > METAL_EMULATOR_THREADGROUP_BYTES) {
    fail(
        "threadgroup memory: %zu bytes, more than %d",
        memory_.used(),
        METAL_EMULATOR_THREADGROUP_BYTES);
  }
  return data;
}

void Worker::record_error(const char* message) {
  bool expected = false;
  if (!dispatch_.failed.compare_exchange_strong(expected, true)) {
    return;
  }
  std::snprintf(
      dispatch_.result->error,
      METAL_EMULATOR_ERROR_BYTES,
      "%s: threadgroup (%u, %u, %u) thread %u (simdgroup %u lane %u): %s",
      dispatch_.kernel->name,
      position_[0],
      position_[1],
      position_[2],
      thread_->index,
      thread_->simdgroup,
      thread_->lane,
      message);
}

void Worker::fail(const char* format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  record_error(message);
  if (!on_fiber_) {
    siglongjmp(on_fault_, 1);
  }
  // Leaves the fiber where it is: the threadgroup is abandoned.
  thread_->fiber.switch_to(main_);
  __builtin_unreachable();
}

void Worker::describe_address(const void* address, char* text, size_t size) {
  auto* byte = static_cast<const char*>(address);
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const BoundBuffer& buffer = dispatch_.buffers[i];
    if (buffer.guard && buffer.guard->surrounds(address)) {
      std::snprintf(
          text,
          size,
          "buffer(%d) of %zu bytes at byte offset %lld",
          i,
          buffer.size,
          static_cast<long long>(byte - buffer.data));
      return;
    }
  }
  ThreadgroupMemory::Place place;
  if (memory_.find(address, place)) {
    std::snprintf(
        text,
        size,
        "a threadgroup variable of %zu bytes at byte offset %lld",
        place.size,
        static_cast<long long>(place.offset));
    return;
  }
  std::snprintf(text, size, "unmapped address %p", address);
}

void Worker::check_access(const void* address, size_t size, bool is_write, const void* pc) {
  Accesses::OutOfBounds out;
  if (!accesses_.find_out_of_bounds(address, size, out)) {
    return;
  }
  char place[64] = "a threadgroup variable";
  if (out.buffer >= 0) {
    std::snprintf(place, sizeof place, "buffer(%d)", out.buffer);
  }
  note_fault(pc);
  fail(
      "illegal %s: %s of %zu bytes at byte offset %lld",
      is_write ? "write" : "read",
      place,
      out.size,
      static_cast<long long>(out.offset));
}

void Worker::note_fault(const void* pc) {
  if (!dispatch_.failed) {
    dispatch_.result->fault_offset = library_offset(pc);
  }
}

void Worker::fail_fault(const void* address, bool is_write, const void* pc, int signal) {
  char place[256];
  char message[512];
  if (signal == SIGILL || signal == SIGTRAP) {
    std::snprintf(message, sizeof message, "undefined behaviour");
  } else {
    describe_address(address, place, sizeof place);
    std::snprintf(message, sizeof message, "illegal %s: %s", is_write ? "write" : "read", place);
  }
  note_fault(pc);
  record_error(message);
  siglongjmp(on_fault_, 1);
}

} // namespace metal_emulator
