// What the host has staged for a step, to memory of the GPU, and the tokens that the step before has drawn: a
// thread has a word of each.
#include <metal_stdlib>

#include "copy_staged_buffers.h"
#include "intrinsics.h"

namespace pomona {

// Grid: (blocks, 1, 1).
template <typename T>
inline void copy_staged(const CopyStagedParameters& p, const CopyStagedBuffers& b) {
  const int word = block_position().x * kStagedThreads + thread_index();
  if (word < p.num_words) {
    b.to[word] = b.staged[word];
  }
  if (word < p.num_drawn) {
    b.drawn[word] = b.newest[word];
  }
}

} // namespace pomona
