// Depthwise causal convolution of packed sequences; a sequence's state is its latest inputs.
//
// A thread owns one channel and kConvTokens tokens of the batch. Windows lie in x, but for those of
// a sequence's first taps - 1 tokens, which reach into the state. These tokens all belong to the
// thread that owns the first one, which then writes the new state: so who reads state is who writes
// it, and no thread waits for another. The new state is the sequence's last inputs, in x, and what
// is left of the old one where the step is shorter than the window.
#include <metal_stdlib>

#include "../common/bindings.h"
#include "../common/constants.h"
#include "../common/parameters.h"

namespace pomona {

// The sequence of `token`: the last one that begins no later.
inline int sequence_of(const device int* cu_seqlens_q, int num_seqs, int token) {
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

// One channel of a sequence that begins at token `begin`.
template <typename T>
struct ConvInputs {
  const device T* x;
  const device T* state; // of the first of the kept inputs, if has_state
  int64_t x_token; // from one token to the next
  int begin;
  int kept;
  int channels;
  bool has_state;

  // `index` tokens after `begin`, or before it.
  T at(int index) const {
    if (index >= 0) {
      return x[(begin + int64_t(index)) * x_token];
    }
    return has_state ? state[(kept + index) * int64_t(channels)] : T(0);
  }
};

} // namespace pomona

// Grid: (channels / kConvThreads, tokens / kConvTokens, 1).
template <typename T>
[[kernel]] void causal_conv(
    constant pomona::ConvParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* x [[buffer(POMONA_BUFFER_X)]],
    const device float* weight [[buffer(POMONA_BUFFER_WEIGHT)]],
    const device float* bias [[buffer(POMONA_BUFFER_BIAS)]],
    device T* states [[buffer(POMONA_BUFFER_STATES)]],
    const device int* read_slots [[buffer(POMONA_BUFFER_READ_SLOTS)]],
    const device int* write_slots [[buffer(POMONA_BUFFER_WRITE_SLOTS)]],
    const device int* cu_seqlens_q [[buffer(POMONA_BUFFER_CU_SEQLENS_Q)]],
    device T* out [[buffer(POMONA_BUFFER_OUT)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  int channel = group_position.x * kConvThreads + thread_index;
  if (channel >= p.channels) {
    return;
  }
  int token = group_position.y * kConvTokens;
  int last = metal::min(token + kConvTokens, p.num_tokens);
  int kept = p.taps - 1;
  int64_t slot_size = int64_t(kept) * p.channels;
  float offset = p.has_bias ? bias[channel] : 0.0f;
  for (int seq = sequence_of(cu_seqlens_q, p.num_seqs, token); token < last; seq++) {
    int begin = cu_seqlens_q[seq], end = cu_seqlens_q[seq + 1];
    bool owns_state = token == begin;
    int stop = metal::min(end, last);
    if (owns_state) {
      stop = metal::max(stop, metal::min(end, begin + kept));
    } else {
      token = metal::min(metal::max(token, begin + kept), stop);
    }
    int read = read_slots[seq];
    ConvInputs<T> inputs{
        x + channel * p.x_channel,
        states + read * slot_size + channel,
        p.x_token,
        begin,
        kept,
        p.channels,
        read >= 0};
    for (; token < stop; token++) {
      float sum = offset;
      for (int j = 0; j < p.taps; j++) {
        sum += weight[j * p.channels + channel] * float(inputs.at(token - begin - kept + j));
      }
      out[int64_t(token) * p.channels + channel] = T(sum);
    }
    if (owns_state) {
      device T* to = states + write_slots[seq] * slot_size + channel;
      // Where the slots are one, a row comes from the same row or a later one.
      for (int row = 0; row < kept; row++) {
        to[row * int64_t(p.channels)] = inputs.at(end - begin - kept + row);
      }
    }
  }
}
