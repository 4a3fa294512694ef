// Draws the token of one row of logits. Stages in order: a mask, penalties, biases, temperature, min_p,
// top_k, top_p, and the draw: the Gumbel-max trick, with noise that belongs to token ids.
//
// A row's token follows from its own logits and options alone. Weights are whole numbers, so that
// their sums do not depend on the order they are added up in.
#pragma once

#include <cstdint>

#include "cpu/kernels/table.h"
#include "common/parameters.h"

namespace pomona::cpu {

struct DrawArguments {
  const float* logits; // [rows, vocab_size]
  const DrawOptions* options; // [rows]
  const int32_t* masks; // [masks, words_per_mask], a bit for each token that may come
  const int32_t* counts; // [counts_rows, vocab_size]; see Penalties
  const int32_t* bias_ids; // of the vocabulary
  const float* biases;
  int64_t vocab_size; // at least 1
  int64_t words_per_mask;
};

int32_t draw_token(const KernelTable& kernels, const DrawArguments& arguments, int64_t row);

} // namespace pomona::cpu
