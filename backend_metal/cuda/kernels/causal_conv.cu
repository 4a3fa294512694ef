// Depthwise causal convolution of packed sequences; shaders/recurrent/causal_conv.metal says who owns what.
#include <metal_stdlib>

#include "recurrent_buffers.h"
#include "rounding.h"
#include "shaders/common/constants.h"
#include "shaders/common/parameters.h"

namespace pomona {

// The sequence of `token`: the last one that begins no later.
inline int sequence_of(const int* cu_seqlens_q, int num_seqs, int token) {
  int low = 0, high = num_seqs - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (cu_seqlens_q[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Grid: (channels / kConvThreads, tokens / kConvTokens, 1).
template <typename T>
inline void causal_conv(const ConvParameters& p, const ConvBuffers& b) {
  const int channel = block_position().x * kConvThreads + thread_index();
  if (channel >= p.channels) {
    return;
  }
  int token = block_position().y * kConvTokens;
  const int last = metal::min(token + int(kConvTokens), p.num_tokens);
  const int kept = p.taps - 1;
  const int64_t slot_size = int64_t(kept) * p.channels;
  const float offset = p.has_bias ? b.bias[channel] : 0.0f;
  T* states = static_cast<T*>(b.states) + channel;
  for (int seq = sequence_of(b.cu_seqlens_q, p.num_seqs, token); token < last; seq++) {
    const int begin = b.cu_seqlens_q[seq], end = b.cu_seqlens_q[seq + 1];
    const bool owns_state = token == begin;
    int stop = metal::min(end, last);
    if (owns_state) {
      stop = metal::max(stop, metal::min(end, begin + kept));
    } else {
      token = metal::min(metal::max(token, begin + kept), stop);
    }
    const int read = b.read_slots[seq];
    const T* x = static_cast<const T*>(b.x) + begin * p.x_token + channel * p.x_channel;
    const T* state = states + read * slot_size;
    // `index` tokens after `begin`, or before it.
    auto input = [&](int index) {
      if (index >= 0) {
        return x[index * p.x_token];
      }
      return read >= 0 ? state[(kept + index) * int64_t(p.channels)] : T{};
    };
    for (; token < stop; token++) {
      float sum = offset;
      for (int j = 0; j < p.taps; j++) {
        sum += b.weight[j * p.channels + channel] * to_float(input(token - begin - kept + j));
      }
      static_cast<T*>(b.out)[int64_t(token) * p.channels + channel] = from_float<T>(sum);
    }
    if (owns_state) {
      T* to = states + b.write_slots[seq] * slot_size;
      // Where the slots are one, a row comes from the same row or a later one.
      for (int row = 0; row < kept; row++) {
        to[row * int64_t(p.channels)] = input(end - begin - kept + row);
      }
    }
  }
}

} // namespace pomona
