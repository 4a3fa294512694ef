// What the kernels of draws keep between their steps. C++, Metal and CUDA read it.
#pragma once

#include "constants.h"

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace pomona {

struct DrawBest {
  float logit;
  float noise;
  int token; // -1: none yet
};

// Of the threadgroup that ranks a row's tokens. `Counter` is a word that all its threads add to.
template <typename Counter>
struct CutMemory {
  Counter low[kRankDigit], high[kRankDigit]; // the weight of a digit's value, in two words
  uint64_t runs[kRankDigit / kDigitRun];
  uint64_t before, total;
  DrawBest best[kCutThreads];
  Counter num_ahead, num_level;
  unsigned value;
  unsigned unused; // to a multiple of 16 bytes
};

} // namespace pomona
