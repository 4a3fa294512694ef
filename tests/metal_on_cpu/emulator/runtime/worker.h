// One host thread that executes threadgroups, one after another: each GPU thread is a fiber that
// runs until it waits for others.
//
// A *meeting point* is a call that several threads must make together: a simdgroup operation (32
// lanes) or a barrier. Threads that meet must come from one call in the source; anything else is
// divergence, which a GPU would answer with wrong numbers or a hang.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "accesses.h"
#include "dispatch.h"
#include "fiber.h"
#include "threadgroup_memory.h"

namespace metal_emulator {

constexpr uint32_t kSimdWidth = 32;
constexpr uint32_t kLaneSlotBytes = 64;

struct Site {
  const char* operation;
  const char* file;
  uint32_t line;

  bool operator==(const Site& other) const {
    return operation == other.operation && file == other.file && line == other.line;
  }
};

// As generated entry points read it: a pointer or a scalar or vector of indices.
struct Argument {
  uint64_t pointer;
  uint32_t value[4];
};

enum class ThreadState : uint8_t { ready, at_simd_operation, at_barrier, returned };

struct GpuThread {
  Fiber fiber;
  ThreadState state;
  uint32_t index, lane, simdgroup;
  Site site; // of the barrier at which it waits
  std::vector<Argument> arguments;
};

struct Simdgroup {
  uint32_t first_thread, num_lanes;
  uint32_t ready, arrived, at_barrier, returned;
  uint32_t meetings; // so far: a late reader of one finds its slots when the next has begun
  Site site; // of the meeting that lanes wait for
  alignas(64) char slots[2][kSimdWidth * kLaneSlotBytes];

  char* current_slots() {
    return slots[meetings % 2];
  }
};

class Worker {
 public:
  Worker(Dispatch& dispatch, uint32_t number);

  // Executes threadgroups until none is left or one has failed.
  void run();

  // Called on fibers.
  static Worker& current();
  static Worker* current_or_null();
  GpuThread& thread() {
    return *thread_;
  }
  Simdgroup& simdgroup() {
    return simdgroups_[thread_->simdgroup];
  }
  // Waits for all lanes; true for the last one, which does not wait.
  bool meet_simdgroup(const Site& site);
  void simdgroup_barrier(const Site& site, bool orders_memory);
  void threadgroup_barrier(const Site& site, bool orders_memory);
  void* threadgroup_variable(uint64_t key, size_t size);
  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...);
  // From a signal handler.
  [[noreturn]] void fail_fault(const void* address, bool is_write, const void* pc, int signal);
  bool on_fiber() const {
    return on_fiber_;
  }
  // Of a traced library: fails where the access leaves what was allocated.
  void check_access(const void* address, size_t size, bool is_write, const void* pc);
  Accesses& accesses() {
    return accesses_;
  }

 private:
  void run_threadgroup(uint64_t number);
  void bind_arguments(GpuThread& thread, const uint32_t* position);
  static void thread_entry();
  void finish_thread();
  void yield();
  GpuThread* next_ready();
  GpuThread* next_lane(Simdgroup& simdgroup, uint32_t start, bool backwards);
  void release_barrier();
  void record_error(const char* message);
  void note_fault(const void* pc);
  void describe_address(const void* address, char* text, size_t size);
  std::vector<GpuThread>& threads() {
    return thread_sets_[thread_set_];
  }

  Dispatch& dispatch_;
  Fiber main_;
  // Under ThreadSanitizer successive threadgroups take turns, so that their fibers are unordered.
  std::vector<GpuThread> thread_sets_[2];
  uint32_t thread_set_ = 0;
  std::vector<Simdgroup> simdgroups_;
  GpuThread* thread_ = nullptr;
  bool on_fiber_ = false;
  uint32_t position_[3];
  uint32_t size_[3]; // of this threadgroup
  uint32_t num_threads_, num_returned_, num_at_barrier_;
  uint32_t barriers_ = 0;
  uint64_t simdgroup_barriers_ = 0;
  uint64_t threadgroup_barriers_ = 0;
  ThreadgroupMemory memory_;
  Accesses accesses_;
  std::minstd_rand random_;
  sigjmp_buf on_fault_;
  alignas(64) char barrier_sync_[2][64];
};

} // namespace metal_emulator
