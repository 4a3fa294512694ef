// silu(gate) * up, of rows that may be parts of larger ones: a thread has 16 bytes of a row.
#include <metal_stdlib>

#include "element_vectors.h"
#include "silu.h"
#include "silu_product_buffers.h"
#include "shaders/common/constants.h"
#include "shaders/common/options.h"
#include "shaders/common/parameters.h"

namespace pomona {

// Grid: (rows * blocks_per_row, 1, 1).
template <typename T>
inline void silu_product(const SiluProductParameters& p, const SiluProductBuffers& b) {
  const int row = block_position().x / p.blocks_per_row;
  const int block = block_position().x % p.blocks_per_row;
  const int first = (block * kSiluThreads + thread_index()) * kVectorElements<T>;
  if (first >= p.width) {
    return;
  }
  const int outer = row / p.inner, inner = row % p.inner;
  const auto gate = load_vector(
      static_cast<const T*>(b.gate) + outer * p.gate.token + inner * p.gate.head,
      p.gate.dim,
      first,
      p.width,
      aligned);
  const auto up = load_vector(
      static_cast<const T*>(b.up) + outer * p.up.token + inner * p.up.head,
      p.up.dim,
      first,
      p.width,
      aligned);
  float elements[kVectorElements<T>];
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; i++) {
    elements[i] = silu_product_of<T>(element(gate, i), element(up, i));
  }
  store_vector(
      static_cast<T*>(b.out) + int64_t(row) * p.width, vector_of<T>(elements), first, p.width, aligned);
}

} // namespace pomona
