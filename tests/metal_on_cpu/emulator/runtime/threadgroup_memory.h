// Threadgroup memory of one threadgroup at a time: every variable on pages of its own, filled with
// NaN before each threadgroup, 32 KiB in all.
#pragma once

#include <cstdint>
#include <map>

#include "guarded_memory.h"

namespace metal_emulator {

class ThreadgroupMemory {
 public:
  explicit ThreadgroupMemory(bool guard_at_start);
  ~ThreadgroupMemory();
  ThreadgroupMemory(const ThreadgroupMemory&) = delete;

  void begin_threadgroup();
  // The variable's memory in this threadgroup.
  char* variable(uint64_t key, size_t size);
  // Bytes that this threadgroup has taken so far.
  size_t used() const {
    return used_;
  }
  struct Place {
    uint64_t key;
    size_t size;
    int64_t offset;
  };
  // The variable near `address`, if any.
  bool find(const void* address, Place& place) const;
  // A variable that was written outside of its bounds, if any.
  bool find_overwritten(Place& place) const;

 private:
  struct Variable {
    GuardedMemory memory;
    char* data = nullptr;
    size_t size = 0;
    uint64_t generation = 0;
  };
  char* fresh_addresses(size_t size);

  std::map<uint64_t, Variable> variables_;
  uint64_t generation_ = 0;
  size_t used_ = 0;
  bool guard_at_start_;
  char* arena_ = nullptr;
  size_t arena_used_ = 0;
};

} // namespace metal_emulator
