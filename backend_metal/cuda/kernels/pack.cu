// Rows of any strides to where the other kernels can read them. Elements are copied as bits.
#include "attention_buffers.h"
#include "intrinsics.h"
#include "shaders/common/parameters.h"

namespace pomona {

// Grid: (tokens, 1, 1).
template <typename T>
inline void pack_rows(const PackParameters& p, const PackBuffers& b) {
  int64_t token = block_position().x;
  int row_elements = p.num_heads * p.dim;
  const T* from = static_cast<const T*>(b.from) + token * p.strides[0];
  T* to = static_cast<T*>(b.to) + token * row_elements;
  for (int i = thread_index(); i < row_elements; i += kCopyThreads) {
    to[i] = from[i / p.dim * p.strides[1] + i % p.dim * p.strides[2]];
  }
}

} // namespace pomona
