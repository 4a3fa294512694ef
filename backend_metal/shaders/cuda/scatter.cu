// This step's keys and values to their slots. Elements are copied as bits, so the kernel is
// instantiated for their widths, not for every dtype.
#include "cuda/attention_buffers.h"
#include "cuda/intrinsics.h"
#include "cuda/slots.h"

namespace pomona {

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
        p.head_dim,
        kCopyThreads);
  } else {
    copy_heads(
        static_cast<T*>(b.v_cache) + slot_offset(p.v_cache, slot),
        p.v_cache.head,
        static_cast<const T*>(b.v) + token * p.v.token,
        p.v.head,
        p.num_kv_heads,
        p.head_dim_v,
        kCopyThreads);
  }
}

} // namespace pomona
