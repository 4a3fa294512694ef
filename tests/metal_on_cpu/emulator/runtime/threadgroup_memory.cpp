#include "threadgroup_memory.h"

#include <sys/mman.h>

#include <new>

namespace metal_emulator {
namespace {

constexpr size_t kAlignment = 16;
constexpr char kPoison = static_cast<char>(0xff);
constexpr size_t kArenaBytes = size_t{8} << 30; // of address space

size_t round_up(size_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

} // namespace

ThreadgroupMemory::ThreadgroupMemory(bool guard_at_start) : guard_at_start_(guard_at_start) {
#ifdef METAL_EMULATOR_TSAN
  // Mapped before a fiber runs: ThreadSanitizer takes whoever maps memory for its writer.
  void* mapping = mmap(
      nullptr,
      kArenaBytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (mapping == MAP_FAILED) {
    throw std::bad_alloc();
  }
  arena_ = static_cast<char*>(mapping);
#endif
}

ThreadgroupMemory::~ThreadgroupMemory() {
  if (arena_) {
    munmap(arena_, kArenaBytes);
  }
}

void ThreadgroupMemory::begin_threadgroup() {
  generation_++;
  used_ = 0;
}

char* ThreadgroupMemory::variable(uint64_t key, size_t size) {
  Variable& variable = variables_[key];
  if (variable.generation == generation_) {
    return variable.data;
  }
#ifdef METAL_EMULATOR_TSAN
  // Reused addresses would look like a race between threadgroups.
  variable.data = fresh_addresses(size);
  variable.size = size;
#else
  if (!variable.data || variable.size != size) {
    variable.memory = GuardedMemory(size, guard_at_start_);
    variable.data = variable.memory.data();
    variable.size = size;
  }
#endif
  variable.generation = generation_;
  used_ += round_up(size);
  for (size_t i = 0; i < size; i++) {
    static_cast<volatile char*>(variable.data)[i] = kPoison;
  }
  return variable.data;
}

char* ThreadgroupMemory::fresh_addresses(size_t size) {
  // Neighbours do not share a word of the sanitizer's shadow.
  size_t bytes = round_up(size) + 64;
  if (arena_used_ + bytes > kArenaBytes) {
    throw std::bad_alloc();
  }
  char* data = arena_ + arena_used_;
  arena_used_ += bytes;
  return data;
}

bool ThreadgroupMemory::find(const void* address, Place& place) const {
  for (const auto& [key, variable] : variables_) {
    if (variable.memory.surrounds(address)) {
      place = {key, variable.size, static_cast<const char*>(address) - variable.data};
      return true;
    }
  }
  return false;
}

bool ThreadgroupMemory::find_overwritten(Place& place) const {
  for (const auto& [key, variable] : variables_) {
    if (!variable.memory.data()) {
      continue;
    }
    if (int64_t offset = variable.memory.overwritten_slack()) {
      place = {key, variable.size, offset};
      return true;
    }
  }
  return false;
}

} // namespace metal_emulator
