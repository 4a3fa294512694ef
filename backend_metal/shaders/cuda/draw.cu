// The draw of one token for each row of logits; shaders/draw.metal says how the work is divided.
#include <metal_stdlib>

#include "cuda/draw_buffers.h"
#include "cuda/group.h"
#include "draw_chunk.h"
#include "draw_cut.h"

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

// Grid: (chunks, rows, 1).
template <typename T>
inline void draw_chunks(const DrawParameters& p, const DrawBuffers& b) {
  auto* shared = reinterpret_cast<DrawBest*>(shared_memory());
  const int chunk = block_position().x, row = block_position().y;
  const RowLogits<T> own = own_logits<T>(p, b, row);
  DrawBest best = best_of_chunk(own, p.vocab_size, chunk, thread_index());
  best = best_of_all<kDrawThreads>(best, shared, thread_index(), own.options.temperature);
  if (thread_index() == 0) {
    b.bests[int64_t(row) * p.num_chunks + chunk] = best;
  }
}

// Grid: (rows, 1, 1).
template <typename T>
inline void draw_rows(const DrawParameters& p, const DrawBuffers& b) {
  auto* memory = reinterpret_cast<CutMemory<Counter>*>(shared_memory());
  const int64_t row = block_position().x;
  const RowLogits<T> own = own_logits<T>(p, b, row);
  const float temperature = own.options.temperature;
  DrawBest best =
      best_of_chunks(b.bests + row * p.num_chunks, p.num_chunks, temperature, thread_index());
  best = best_of_all<kCutThreads>(best, memory->best, thread_index(), temperature);
  int token = best.token;
  // Differences to an infinity are none.
  if (token >= 0 && best.logit < INFINITY && cuts(own.options, p.vocab_size)) {
    const RowCut<T> cut = {
        own, b.candidates + row * p.vocab_size, memory, best.logit, p.vocab_size, thread_index()};
    const int drawn = cut.draw();
    token = drawn < 0 ? token : drawn;
  }
  if (thread_index() == 0) {
    b.out[row] = metal::max(token, 0);
  }
}

} // namespace pomona
