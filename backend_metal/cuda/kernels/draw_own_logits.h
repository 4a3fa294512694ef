// The logits of a block's row, from a draw's arrays.
#pragma once

#include <metal_stdlib>

#include "draw_buffers.h"
#include "group.h"
#include "shaders/sampling/draw_logits.h"

namespace pomona {

template <typename T>
inline RowLogits<T> own_logits(const DrawParameters& p, const DrawBuffers& b, int64_t row) {
  return row_logits(
      static_cast<const T*>(b.logits),
      b.masks,
      b.counts,
      b.bias_tokens,
      b.biases,
      b.options[row],
      row,
      p);
}

} // namespace pomona
