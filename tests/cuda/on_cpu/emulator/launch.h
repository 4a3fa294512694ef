// What crosses the border between the test extension and a kernel's library.
#pragma once

#include <cstdint>
#include <string>

namespace cuda_on_cpu {

struct Launch {
  int grid[3];
  int cluster; // blocks, along z
  int threads;
  int64_t memory_bytes;
  void** arguments;
  bool backwards; // threads run last to first
  std::string* failure;
};

} // namespace cuda_on_cpu
