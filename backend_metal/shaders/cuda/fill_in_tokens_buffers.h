// Where the kernel that fills in drawn tokens finds its arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

struct FillInTokensBuffers {
  const int* token_ids;
  const int* drawn;
  int* out;
};

} // namespace pomona
