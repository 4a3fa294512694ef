// A token's keys or values on their way to a slot of a cache.
#pragma once

#include "intrinsics.h"
#include "shaders/common/options.h"
#include "shaders/common/parameters.h"

namespace pomona {

// Copies one head's elements by all threads of a block, 16 bytes at a time where both sides are aligned.
template <typename T>
inline void copy_head(T* to, const T* from, int dim, int num_threads) {
  const int step = aligned ? 16 / sizeof(T) : 1;
  for (int i = thread_index() * step; i < dim; i += num_threads * step) {
    if (aligned) {
      copy_16_bytes(to + i, from + i);
    } else {
      to[i] = from[i];
    }
  }
}

// The slot's first element.
inline int64_t slot_offset(CacheStrides strides, int slot) {
  return slot / block_size * strides.block + slot % block_size * strides.slot;
}

} // namespace pomona
