// Counts the distinct bytes of tracked buffers that a threadgroup loads. Kernels built with
// -fsanitize-coverage=trace-loads call in before each load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch.h"

namespace metal_emulator {

class LoadTracker {
 public:
  explicit LoadTracker(const Dispatch& dispatch);

  void record(const void* address, size_t size);
  // Adds what this threadgroup loaded to `loaded`, by buffer index, and forgets it.
  void finish_threadgroup(std::atomic<uint64_t>* loaded);

 private:
  struct Range {
    int index;
    const char* data;
    size_t size;
    std::vector<uint64_t> words; // a bit for each byte
    std::vector<uint32_t> touched; // words that are not zero
  };
  std::vector<Range> ranges_;
};

} // namespace metal_emulator
