#include "gpu/draw_tokens.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/constants.h"
#include "sampling/draw_memory.h"
#include "plan_arithmetic.h"

namespace pomona {

DrawArrays draw_arrays(const std::vector<mx::array>& inputs) {
  return {inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5]};
}

DrawParameters parameters_of(const DrawArrays& a) {
  int vocab_size = a.logits.shape(1);
  if (vocab_size > kMaxDrawVocab) {
    throw std::invalid_argument(
        "logits must be of at most " + std::to_string(kMaxDrawVocab) + " tokens on a GPU");
  }
  int pairs = vocab_size - vocab_size / 2;
  return {
      a.logits.strides(0),
      a.logits.strides(1),
      vocab_size,
      a.masks.shape(1),
      ceil_div(pairs, kDrawPairs),
      ceil_div(pairs, kSlicePairs)};
}

DrawPlan plan_draw(int num_rows, const DrawParameters& p, bool cuts) {
  // Memory of few sizes is used again.
  int64_t rows_of_memory = power_of_two_from(num_rows);
  int64_t num_candidates = rows_of_memory * p.vocab_size;
  int64_t tally_words = rows_of_memory * int64_t(sizeof(RowTally<uint32_t>) / sizeof(int));
  if (cuts && std::max(num_candidates, tally_words) > std::numeric_limits<int>::max()) {
    throw std::invalid_argument("logits must be of fewer rows, or of fewer tokens");
  }
  int64_t cut_bytes = sizeof(CutMemory<uint32_t>);
  return {
      {p.num_chunks, num_rows, 1, kDrawThreads, kDrawThreads * sizeof(DrawBest)},
      {cuts ? p.num_slices : 0, num_rows, 1, kCutThreads, cut_bytes},
      {num_rows, 1, 1, kCutThreads, cut_bytes},
      num_rows * (p.num_chunks + p.num_slices) * int(sizeof(DrawBest) / sizeof(int)),
      cuts ? static_cast<int>(num_candidates) : 1,
      cuts ? static_cast<int>(tally_words) : 1};
}

} // namespace pomona
