// Products of a warpgroup, and barriers of those that copy for it.
#pragma once

#include <cstdint>
#include <vector>

namespace cuda_on_cpu {

// In shared memory; a phase ends when all have arrived.
struct Barrier {
  uint16_t count;
  uint16_t pending;
  uint32_t phase;
};

// Rows of 2-byte elements in shared memory, swizzled, as wgmma is told of them.
struct Panel {
  uint32_t start; // bytes from the start of shared memory
  uint32_t stride; // from one panel to the next

  static Panel of(uint64_t word);
  // Of the element, counted in bytes from `start` on, without what the swizzle does.
  uint32_t place(uint32_t offset) const;
};

// One product of a lane, which takes place when it is waited for and no sooner: nobody may touch its
// registers and what it reads before that.
struct Product {
  float (*sums)[4];
  int columns;
  bool adds;
  const unsigned* left_words; // or null
  uint64_t left;
  uint64_t right;
  bool right_is_rows;
  float (*to_float)(uint16_t);
  std::vector<float> before; // of the sums, if this is the first product under way that has them
};

} // namespace cuda_on_cpu
