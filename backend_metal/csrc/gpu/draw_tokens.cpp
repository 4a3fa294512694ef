#include "gpu/draw_tokens.h"

#include "constants.h"
#include "draw_memory.h"
#include "plan_arithmetic.h"

namespace pomona {

DrawArrays draw_arrays(const std::vector<mx::array>& inputs) {
  return {inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5]};
}

DrawParameters parameters_of(const DrawArrays& a) {
  int vocab_size = a.logits.shape(1);
  int pairs = vocab_size - vocab_size / 2;
  return {vocab_size, a.masks.shape(1), static_cast<int>(ceil_div(pairs, kDrawPairs))};
}

DrawPlan plan_draw(int num_rows, const DrawParameters& p, bool cuts) {
  return {
      {p.num_chunks, num_rows, 1, kDrawThreads, kDrawThreads * sizeof(DrawBest)},
      {num_rows, 1, 1, kCutThreads, sizeof(CutMemory<uint32_t>)},
      num_rows * p.num_chunks * int(sizeof(DrawBest) / sizeof(int)),
      cuts ? num_rows * p.vocab_size : 1};
}

} // namespace pomona
