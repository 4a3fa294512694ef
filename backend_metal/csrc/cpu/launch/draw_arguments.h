// What the kernels of a draw take.
#pragma once

#include <cstdint>

namespace pomona::cpu {

// Logits of one row, and the largest of each kMaximaBlock of them.
constexpr int64_t kMaximaBlock = 64;

struct DrawLogits {
  const float* logits;
  const float* maxima;
  int64_t count;
  float largest;
  float temperature;
};

// How a row's tokens are penalised. A count is twice the times that a token has come in the output,
// and one more if it is in the prompt.
struct Penalties {
  const int32_t* counts;
  float repetition;
  float presence;
  float frequency;
};

struct Weighed {
  uint64_t weight;
  int64_t count;
};

// A weight is a whole number; that of the largest logit.
constexpr float kWeightOne = 1073741824.0f;

} // namespace pomona::cpu
