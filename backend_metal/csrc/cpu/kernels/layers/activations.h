// Element by element; the last few go through a vector of their own, so that where an element lies
// changes nothing.
#pragma once

#include "cpu/kernels/elementary.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

inline Floats silu(Floats x) {
  return x / (exp(-x) + 1.0f);
}

// `out` may be either input.
inline void swiglu(const float* gate, const float* up, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(out + i, silu(load(gate + i)) * load(up + i));
  }
  if (i < count) {
    float last_gate[kLanes] = {}, last_up[kLanes] = {};
    int64_t bytes = (count - i) * sizeof(float);
    __builtin_memcpy(last_gate, gate + i, bytes);
    __builtin_memcpy(last_up, up + i, bytes);
    store(last_gate, silu(load(last_gate)) * load(last_up));
    __builtin_memcpy(out + i, last_gate, bytes);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
