// What the workers of one dispatch share.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "guarded_memory.h"
#include "metal_emulator.h"

namespace metal_emulator {

struct BoundBuffer {
  char* data = nullptr;
  size_t size = 0;
  bool track = false;
  const GuardedMemory* guard = nullptr; // the memory that it lies in, where we guard it
};

struct Dispatch {
  const metal_emulator_kernel* kernel = nullptr;
  uint32_t grid[3]; // threadgroups
  uint32_t threadgroup[3]; // threads
  uint32_t threads[3]; // of the whole grid
  uint64_t num_threadgroups = 0;
  BoundBuffer buffers[METAL_EMULATOR_MAX_BUFFERS];
  size_t threadgroup_memory[METAL_EMULATOR_MAX_BUFFERS];
  uint32_t seed = 0;
  bool guard_at_start = false;

  std::atomic<uint64_t> next_threadgroup{0};
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> threadgroup_barriers{0};
  std::atomic<uint64_t> simdgroup_barriers{0};
  std::atomic<uint64_t> threadgroup_bytes{0};
  std::atomic<uint64_t> loaded[METAL_EMULATOR_MAX_BUFFERS] = {};
  std::atomic<uint64_t> stored[METAL_EMULATOR_MAX_BUFFERS] = {};
  metal_emulator_result* result = nullptr;
  char start_sync, end_sync; // ThreadSanitizer's order of host and threads
};

// Memory from metal_emulator_allocate that `address` lies in or beside, or null.
const GuardedMemory* find_allocation(const void* address);

void install_fault_handlers();
uint64_t library_offset(const void* pc);

} // namespace metal_emulator
