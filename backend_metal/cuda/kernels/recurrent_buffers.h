// Where the kernels of recurrent layers find their arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

struct ConvBuffers {
  const void* x;
  const float* weight;
  const float* bias; // if has_bias
  void* states;
  const int* read_slots;
  const int* write_slots;
  const int* cu_seqlens_q;
  void* out;
};

struct LinearAttentionBuffers {
  const void* q;
  const void* k;
  const void* v;
  const float* gates;
  const float* betas;
  float* states;
  const int* read_slots;
  const int* write_slots;
  const int* cu_seqlens_q;
  void* out;
};

} // namespace pomona
