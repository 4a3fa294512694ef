// What the CPU kernels of recurrent layers are given. Strides are in elements; arrays without one are
// contiguous.
#pragma once

#include <cstdint>

#include "cpu/launch/arguments.h"

namespace pomona::cpu {

// Where each sequence's state is; negative read slots mean zeros.
struct StateSlots {
  int num_seqs;
  const int32_t* read_slots;
  const int32_t* write_slots;
  const int32_t* cu_seqlens_q;
};

inline constexpr int kMaxConvKernel = 8;
inline constexpr int kConvChannels = 256; // of one task, at most

struct ConvArguments {
  ElementType type; // of x, states and out
  int channels;
  int kernel;
  const void* x; // [tokens, channels]
  int64_t x_stride;
  const float* weight; // [kernel, channels]
  const float* bias; // [channels], or null
  void* states; // [slots, kernel - 1, channels]
  void* out; // [tokens, channels]
  StateSlots slots;
};

struct LinearAttentionArguments {
  ElementType type; // of q, k, v and out
  int num_k_heads; // of q and k
  int num_v_heads;
  int head_dim; // of q and k
  int head_dim_v;
  bool delta_rule;
  bool channel_gates; // gates are [tokens, num_v_heads, head_dim], else [tokens, num_v_heads]
  bool gates_are_rates; // gates are [num_v_heads, head_dim], and a token's exp(beta * gate)
  Rows q, k, v;
  const float* gates;
  const float* betas; // [tokens, num_v_heads]
  float* states; // [slots, num_v_heads, head_dim_v, head_dim]
  void* out; // [tokens, num_v_heads, head_dim_v]
  StateSlots slots;
};

} // namespace pomona::cpu
