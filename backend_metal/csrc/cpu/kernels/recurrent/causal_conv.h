// Depthwise causal convolution of packed sequences; a sequence's state is its latest inputs.
#pragma once

#include "cpu/kernels/typed_rows.h"
#include "cpu/launch/recurrent_arguments.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// One token's outputs: `window` are the `kernel` rows of input up to its own.
template <typename T>
inline void conv_row(
    const T* const* window, const ConvArguments& a, int first_channel, T* out, int count) {
  const float* weight = a.weight + first_channel;
  const float* bias = a.bias ? a.bias + first_channel : nullptr;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats sum = bias ? load(bias + i) : Floats{};
    for (int j = 0; j < a.kernel; j++) {
      sum = fma(load(window[j] + i), load(weight + int64_t(j) * a.channels + i), sum);
    }
    store(out + i, sum);
  }
  if (i < count) {
    Floats sum = bias ? load_first(bias + i, count - i) : Floats{};
    for (int j = 0; j < a.kernel; j++) {
      Floats w = load_first(weight + int64_t(j) * a.channels + i, count - i);
      sum = fma(load_first(window[j] + i, count - i), w, sum);
    }
    store_first(out + i, sum, count - i);
  }
}

// Channels `first_channel` to `first_channel + count` of one sequence, count <= kConvChannels.
template <typename T>
void conv_sequence(const ConvArguments& a, int seq, int first_channel, int count) {
  static const T zeros[kConvChannels] = {};
  const int kept = a.kernel - 1;
  const int begin = a.slots.cu_seqlens_q[seq], length = a.slots.cu_seqlens_q[seq + 1] - begin;
  const int64_t slot_size = int64_t(kept) * a.channels;
  const int32_t read = a.slots.read_slots[seq];
  const T* from = static_cast<const T*>(a.states) + read * slot_size + first_channel;
  const T* x = static_cast<const T*>(a.x) + begin * a.x_stride + first_channel;
  // Token `index`, negative for those before this step.
  auto input = [&](int index) {
    if (index >= 0) {
      return x + index * a.x_stride;
    }
    return read < 0 ? zeros : from + int64_t(kept + index) * a.channels;
  };
  T* out = static_cast<T*>(a.out) + int64_t(begin) * a.channels + first_channel;
  for (int token = 0; token < length; token++) {
    const T* window[kMaxConvKernel];
    for (int j = 0; j < a.kernel; j++) {
      window[j] = input(token - kept + j);
    }
    conv_row(window, a, first_channel, out + int64_t(token) * a.channels, count);
  }
  T* to = static_cast<T*>(a.states) + a.slots.write_slots[seq] * slot_size + first_channel;
  // Where the slots are one, a row comes from the same row or a later one.
  for (int row = 0; row < kept; row++) {
    __builtin_memmove(
        to + int64_t(row) * a.channels, input(length - kept + row), count * sizeof(T));
  }
}

inline void causal_conv(const ConvArguments& a, int seq, int first_channel, int count) {
  switch (a.type) {
    case ElementType::float32:
      return conv_sequence<float>(a, seq, first_channel, count);
    case ElementType::float16:
      return conv_sequence<Float16>(a, seq, first_channel, count);
    case ElementType::bfloat16:
      return conv_sequence<BFloat16>(a, seq, first_channel, count);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
