// Rows of any element type and length; the last few elements go through a vector of their own.
#pragma once

#include "cpu/kernels/convert.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// The first `count` lanes; the others are 0.
template <typename T>
inline Floats load_first(const T* from, int64_t count) {
  T part[kLanes] = {};
  __builtin_memcpy(part, from, count * sizeof(T));
  return load(part);
}

template <typename T>
inline void store_first(T* to, Floats v, int64_t count) {
  T part[kLanes];
  store(part, v);
  __builtin_memcpy(to, part, count * sizeof(T));
}

// float32 [count], then zeros until a vector ends.
template <typename T>
inline void widen(const T* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(to + i, load(from + i));
  }
  if (i < count) {
    store(to + i, load_first(from + i, count - i));
  }
}

template <typename T>
inline void narrow(const float* from, T* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(to + i, load(from + i));
  }
  if (i < count) {
    store_first(to + i, load_first(from + i, count - i), count - i);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
