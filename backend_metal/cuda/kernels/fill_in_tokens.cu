// A step's token ids, with those that the step before has drawn in their places: a thread has one. A
// pending token is -1 - row, of the rows that are drawn.
#include <metal_stdlib>

#include "shaders/common/constants.h"
#include "fill_in_tokens_buffers.h"
#include "intrinsics.h"
#include "shaders/common/parameters.h"

namespace pomona {

// Grid: (blocks, 1, 1).
template <typename T>
inline void fill_in_tokens(const FillInTokensParameters& p, const FillInTokensBuffers& b) {
  const int token = block_position().x * kFillInThreads + thread_index();
  if (token >= p.num_tokens) {
    return;
  }
  const T id = b.token_ids[token * p.token_stride];
  b.out[token] = id < 0 ? b.drawn[(-1 - id) * p.drawn_stride] : id;
}

} // namespace pomona
