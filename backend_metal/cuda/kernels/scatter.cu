// This step's keys and values to their slots. Elements are copied as bits, so the kernel is
// instantiated for their widths, not for every dtype.
#include "attention_buffers.h"
#include "intrinsics.h"
#include "slots.h"

namespace pomona {

// A thread copies the same elements of each of a block's tokens, all of which are on their way at once. No
// slot: not copied.
template <typename T>
inline void copy_tokens(
    T* cache,
    CacheStrides to,
    const T* rows,
    RowStrides from,
    const int (&slots)[kScatterTokens],
    int num_heads,
    int dim) {
  const int step = aligned ? 16 / sizeof(T) : 1;
  int per_head = dim / step;
  for (int i = thread_index(); i < num_heads * per_head; i += kCopyThreads) {
    int head = i / per_head, element = i % per_head * step;
    const T* source = rows + head * from.head + element;
    T* target = cache + head * to.head + element;
    if (aligned) {
      unsigned words[kScatterTokens][4];
#pragma unroll
      for (int t = 0; t < kScatterTokens; t++) {
        if (slots[t] >= 0) {
          load_16_bytes(words[t], source + t * from.token);
        }
      }
#pragma unroll
      for (int t = 0; t < kScatterTokens; t++) {
        if (slots[t] >= 0) {
          store_16_bytes(target + slot_offset(to, slots[t]), words[t]);
        }
      }
    } else {
      for (int t = 0; t < kScatterTokens; t++) {
        if (slots[t] >= 0) {
          target[slot_offset(to, slots[t])] = source[t * from.token];
        }
      }
    }
  }
}

// Grid: (blocks of kScatterTokens tokens, 2: keys and values, 1).
template <typename T>
inline void scatter(const ScatterParameters& p, const ScatterBuffers& b) {
  int64_t first = int64_t(block_position().x) * kScatterTokens;
  int slots[kScatterTokens];
#pragma unroll
  for (int t = 0; t < kScatterTokens; t++) {
    slots[t] = first + t < p.num_tokens ? b.slot_mapping[(first + t) * p.slot_mapping_stride] : -1;
  }
  if (block_position().y == 0) {
    copy_tokens(
        static_cast<T*>(b.k_cache),
        p.k_cache,
        static_cast<const T*>(b.k) + first * p.k.token,
        p.k,
        slots,
        p.num_kv_heads,
        p.head_dim);
  } else {
    copy_tokens(
        static_cast<T*>(b.v_cache),
        p.v_cache,
        static_cast<const T*>(b.v) + first * p.v.token,
        p.v,
        slots,
        p.num_kv_heads,
        p.head_dim_v);
  }
}

} // namespace pomona
