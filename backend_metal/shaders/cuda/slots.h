// A token's keys or values on their way to a slot of a cache.
#pragma once

#include "cuda/intrinsics.h"
#include "options.h"
#include "parameters.h"

namespace pomona {

// Copies [heads, dim] elements by all threads of a block, 16 bytes at a time where both sides are
// aligned.
template <typename T>
inline void copy_heads(
    T* to,
    int64_t to_stride,
    const T* from,
    int64_t from_stride,
    int num_heads,
    int dim,
    int num_threads) {
  const int step = aligned ? 16 / sizeof(T) : 1;
  int per_head = dim / step;
  for (int i = thread_index(); i < num_heads * per_head; i += num_threads) {
    int head = i / per_head, element = i % per_head * step;
    T* target = to + head * to_stride + element;
    const T* source = from + head * from_stride + element;
    if (aligned) {
      copy_16_bytes(target, source);
    } else {
      *target = *source;
    }
  }
}

// The slot's first element.
inline int64_t slot_offset(CacheStrides strides, int slot) {
  return slot / block_size * strides.block + slot % block_size * strides.slot;
}

} // namespace pomona
