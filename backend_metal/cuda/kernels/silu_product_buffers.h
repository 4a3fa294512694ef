// What the kernel of silu(gate) * up is given. C++ and CUDA read it.
#pragma once

#include "shaders/common/parameters.h"

namespace pomona {

// Threads of a block.
inline constexpr int kSiluThreads = 128;

struct SiluProductParameters {
  ElementStrides gate, up;
  int inner;
  int width;
  int blocks_per_row;
};

struct SiluProductBuffers {
  const void* gate;
  const void* up;
  void* out;
};

} // namespace pomona
