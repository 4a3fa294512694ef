// What the kernel that fills in drawn tokens is given. C++ and CUDA read it.
#pragma once

#include "shaders/common/parameters.h"

namespace pomona {

// Threads of a block, one for each token.
inline constexpr int kFillInThreads = 128;

// Of token ids and of the drawn ones: their strides.
struct FillInTokensParameters {
  int64_t token_stride;
  int64_t drawn_stride;
  int num_tokens;
};

struct FillInTokensBuffers {
  const int* token_ids;
  const int* drawn;
  int* out;
};

} // namespace pomona
