// This step's keys and values to their slots. Elements are copied as bits, so the kernel is
// instantiated for their widths, not for every dtype.
#include "cuda/attention_buffers.h"
#include "cuda/intrinsics.h"
#include "options.h"
#include "parameters.h"

namespace pomona {

// Copies [heads, dim] elements; threads take 16 bytes at a time where both sides are aligned.
template <typename T>
inline void copy_heads(
    T* to, int64_t to_stride, const T* from, int64_t from_stride, int num_heads, int dim) {
  const int step = aligned ? 16 / sizeof(T) : 1;
  int per_head = dim / step;
  for (int i = thread_index(); i < num_heads * per_head; i += kCopyThreads) {
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

// Grid: (tokens, 2: keys and values, 1).
template <typename T>
inline void scatter(const ScatterParameters& p, const ScatterBuffers& b) {
  int64_t token = block_position().x;
  int slot = b.slot_mapping[token * p.slot_mapping_stride];
  if (slot < 0) {
    return;
  }
  if (block_position().y == 0) {
    copy_heads(
        static_cast<T*>(b.k_cache) + slot_offset(p.k_cache, slot),
        p.k_cache.head,
        static_cast<const T*>(b.k) + token * p.k.token,
        p.k.head,
        p.num_kv_heads,
        p.head_dim);
  } else {
    copy_heads(
        static_cast<T*>(b.v_cache) + slot_offset(p.v_cache, slot),
        p.v_cache.head,
        static_cast<const T*>(b.v) + token * p.v.token,
        p.v.head,
        p.num_kv_heads,
        p.head_dim_v);
  }
}

} // namespace pomona
