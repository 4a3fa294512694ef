// What the kernel that adds and normalises rows is given. C++ and CUDA read it.
#pragma once

#include "shaders/common/parameters.h"

namespace pomona {

// Rows of [outer, inner, width]; `head` is the stride of inner.
struct AddRmsNormParameters {
  ElementStrides a, b;
  int64_t weight; // stride
  int inner;
  int width;
  float epsilon;
};

struct AddRmsNormBuffers {
  const void* a;
  const void* b;
  const void* weight;
  void* sum;
  void* normed;
};

} // namespace pomona
