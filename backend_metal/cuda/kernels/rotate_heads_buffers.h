// Where the kernel that rotates heads finds its arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

struct RotateHeadsBuffers {
  const void* q;
  const void* k;
  const int* positions;
  const void* q_weight; // if has_norm
  const void* k_weight; // if has_norm
  const float* frequencies; // if has_frequencies
  void* q_out;
  void* k_out;
};

} // namespace pomona
