// What the kernels of draws keep between their steps. C++ and shaders read it.
#pragma once

#include "../common/constants.h"

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace pomona {

struct DrawBest {
  float logit;
  float noise;
  int token; // -1: none yet
};

// Of `kDigitRun` values of a digit, of as many of those, and so on.
POMONA_CONSTANT int kRuns = kRankDigit / kDigitRun;
POMONA_CONSTANT int kLongRuns = kRuns / kDigitRun;
POMONA_CONSTANT int kLongestRuns = kLongRuns / kDigitRun;

// Of a threadgroup. `Counter` is a word that all its threads add to.
template <typename Counter>
struct HistogramMemory {
  Counter low[kRankDigit], high[kRankDigit]; // the weight of a digit's value, in two words
  uint64_t runs[kRuns], long_runs[kLongRuns], longest_runs[kLongestRuns]; // weights, added up
  uint64_t before;
  unsigned value;
  unsigned unused; // to a multiple of 8 bytes
};

// Of a threadgroup that ranks tokens of a row.
template <typename Counter>
struct CutMemory {
  HistogramMemory<Counter> histogram;
  DrawBest best[kCutThreads];
  Counter num_ahead, num_level; // candidates that this threadgroup lists
  unsigned first_ahead, first_level; // the first of their places in the row's list
};

// The first digit of the last token that a row's first cut leaves.
struct FirstCut {
  uint64_t target; // of weights: where the row is cut
  uint64_t before; // the weight of smaller digits
  unsigned digit; // ~0: nothing is cut by weights
  unsigned unused;
};

// What the threadgroups of a row's slices find out together, in device memory.
template <typename Counter>
struct RowTally {
  FirstCut first;
  Counter low[kRankDigit], high[kRankDigit]; // as in HistogramMemory, of the first digit
  Counter num_ahead, num_level; // candidates that are listed
};

} // namespace pomona
