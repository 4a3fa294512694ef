// Draws the token of one row of logits. Stages in order: penalties, biases, temperature, min_p,
// top_k, top_p, and the draw: the Gumbel-max trick, with noise that belongs to token ids.
//
// A row's token follows from its own logits and options alone. Weights are whole numbers, so that
// their sums do not depend on the order they are added up in.
#pragma once

#include <cstdint>

#include "cpu/kernels/table.h"

namespace pomona::cpu {

// As the primitive's input has them: rows of 32-bit words.
struct DrawOptions {
  uint32_t key[2]; // of the row's noise
  float temperature; // 0: the token of the largest logit is taken
  float log_min_p; // minus infinity: off
  float top_p; // 1: off
  int32_t top_k; // the size of the vocabulary: off
  int32_t counts_row; // in `counts`; -1: nothing is penalised
  float repetition;
  float presence;
  float frequency;
  int32_t first_bias, last_bias;
};

constexpr int kDrawWords = sizeof(DrawOptions) / 4;

struct DrawArguments {
  const float* logits; // [rows, vocab_size]
  const DrawOptions* options; // [rows]
  const int32_t* counts; // [counts_rows, vocab_size]; see Penalties
  const int32_t* bias_ids; // of the vocabulary
  const float* biases;
  int64_t vocab_size; // at least 1
};

int32_t draw_token(const KernelTable& kernels, const DrawArguments& arguments, int64_t row);

} // namespace pomona::cpu
