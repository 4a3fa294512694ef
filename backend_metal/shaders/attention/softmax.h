// The state of one row's softmax, folded tile by tile: its largest score and the sum of its weights
// relative to that. A row without keys stays at -infinity and 0.
//
// Online softmax: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax" (2018).
#pragma once

#include <metal_stdlib>

#include "../common/options.h"

namespace pomona {

// What exponents are relative to: exp(-infinity - (-infinity)) would be NaN.
inline float exponent_base(float largest) {
  return largest == -INFINITY ? 0.0f : largest;
}

// What a state kept relative to `largest` is multiplied by to be relative to `base`.
inline float rescale(float largest, float base) {
  return metal::fast::exp(largest - base);
}

inline float scaled_score(float score, float scale, float softcap) {
  float scaled = score * scale;
  // fast::tanh overflows for large scores.
  return has_softcap ? softcap * metal::precise::tanh(scaled / softcap) : scaled;
}

// What the accumulator is multiplied by in the end; 0 for a row without keys.
inline float final_factor(float largest, float sum, float sink) {
  if (has_sinks) {
    float base = exponent_base(metal::max(largest, sink));
    float scale = metal::fast::exp(largest - base);
    float total = sum * scale + metal::fast::exp(sink - base);
    return sum > 0.0f ? scale / total : 0.0f;
  }
  return sum > 0.0f ? 1.0f / sum : 0.0f;
}

} // namespace pomona
