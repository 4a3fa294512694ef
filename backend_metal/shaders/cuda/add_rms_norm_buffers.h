// Where the kernel that adds and normalises rows finds its arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

struct AddRmsNormBuffers {
  const void* a;
  const void* b;
  const void* weight;
  void* sum;
  void* normed;
};

} // namespace pomona
