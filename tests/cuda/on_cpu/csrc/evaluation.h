// How launches run, and what they did.
#pragma once

#include <string>
#include <vector>

namespace cuda_on_cpu {

struct Settings {
  bool backwards = false; // threads, and kernels that nothing orders
  int num_cores = 4;
  bool warpgroups = false;
  int memory_kb = 227; // of a block
};
Settings& settings();

struct Node {
  std::string kernel;
  std::vector<const void*> inputs, outputs;
  bool is_concurrent;
  int64_t num_blocks;
};

void remember_failure(std::string what);
std::vector<std::string> take_failures();
std::vector<Node> take_nodes();

} // namespace cuda_on_cpu
