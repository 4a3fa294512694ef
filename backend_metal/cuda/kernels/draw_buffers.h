// Where the kernels of draws find their arrays. C++ and CUDA read it.
#pragma once

#include "shaders/sampling/draw_memory.h"
#include "shaders/common/parameters.h"

namespace pomona {

struct DrawBuffers {
  const void* logits;
  const DrawOptions* options;
  const unsigned* masks;
  const int* counts;
  const int* bias_tokens;
  const float* biases;
  DrawBest* bests; // [rows, chunks + slices]
  int* candidates; // [rows, vocab_size], if a row leaves tokens out
  RowTally<unsigned>* tallies; // [rows], likewise
  int* out;
};

} // namespace pomona
