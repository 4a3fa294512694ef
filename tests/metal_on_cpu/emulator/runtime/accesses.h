// What a traced library reports of every load and store: kernels built with
// -fsanitize-coverage=trace-loads,trace-stores call in before each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch.h"
#include "threadgroup_memory.h"

namespace metal_emulator {

class Accesses {
 public:
  Accesses(const Dispatch& dispatch, const ThreadgroupMemory& memory);

  // Counts the bytes of tracked buffers.
  void load(const void* address, size_t size);
  void store(const void* address, size_t size);
  // Where an access to guarded pages leaves the bytes that were allocated, what it leaves.
  struct OutOfBounds {
    int buffer; // -1: threadgroup memory
    size_t size;
    int64_t offset;
  };
  bool find_out_of_bounds(const void* address, size_t size, OutOfBounds& out) const;
  // Adds the distinct bytes that this threadgroup loaded to `loaded`, by buffer, and all that it
  // stored to `stored`, and forgets them.
  void finish_threadgroup(std::atomic<uint64_t>* loaded, std::atomic<uint64_t>* stored);

 private:
  struct Tracked {
    int index;
    const char* data;
    size_t size;
    std::vector<uint64_t> words; // a bit for each byte
    std::vector<uint32_t> touched; // words that are not zero
    uint64_t stored = 0;
  };
  const Dispatch& dispatch_;
  const ThreadgroupMemory& memory_;
  std::vector<Tracked> tracked_;
};

} // namespace metal_emulator
