// What the kernel is told that copies what the host has staged, and where it finds its arrays. C++ and
// CUDA read it.
#pragma once

namespace pomona {

inline constexpr int kStagedThreads = 256;

struct CopyStagedParameters {
  int num_words;
  int num_drawn;
};

struct CopyStagedBuffers {
  const unsigned* staged; // memory of the host
  unsigned* to;
  const unsigned* newest;
  unsigned* drawn;
};

} // namespace pomona
