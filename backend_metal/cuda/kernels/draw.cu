// The draw of one token for each row of logits; shaders/sampling/draw.metal says how the work is divided, and
// draw_chunks.cu begins it.
#include "draw_own_logits.h"
#include "shaders/sampling/draw_chunk.h"
#include "shaders/sampling/draw_cut.h"
#include "shaders/sampling/draw_slice.h"

namespace pomona {

inline CutMemory<Counter>* cut_memory() {
  return reinterpret_cast<CutMemory<Counter>*>(shared_memory());
}

inline DrawBest likeliest_of(
    const DrawParameters& p, const DrawBuffers& b, int row, DrawBest* shared) {
  return best_of_chunks(
      row_bests(b.bests, row, p),
      p.num_chunks,
      b.options[row].temperature,
      shared,
      thread_index());
}

// Grid: (slices, rows, 1), as of draw_slices.
template <typename T>
inline void draw_weights(const DrawParameters& p, const DrawBuffers& b) {
  auto* memory = cut_memory();
  const int slice = block_position().x, row = block_position().y;
  const RowLogits<T> own = own_logits<T>(p, b, row);
  if (!weighs(own.options, p.vocab_size)) {
    return;
  }
  const DrawBest likeliest = likeliest_of(p, b, row, memory->best);
  if (may_be_cut(likeliest, own.options, p.vocab_size)) {
    const RowSlice<T> own_slice = {
        {own, likeliest.logit, p.vocab_size}, b.tallies + row, memory, slice, thread_index()};
    own_slice.weigh();
  }
}

template <typename T>
inline void draw_slices(const DrawParameters& p, const DrawBuffers& b) {
  auto* memory = cut_memory();
  const int slice = block_position().x, row = block_position().y;
  const RowLogits<T> own = own_logits<T>(p, b, row);
  if (!cuts(own.options, p.vocab_size)) {
    return;
  }
  const DrawBest likeliest = likeliest_of(p, b, row, memory->best);
  if (may_be_cut(likeliest, own.options, p.vocab_size)) {
    const RowSlice<T> own_slice = {
        {own, likeliest.logit, p.vocab_size}, b.tallies + row, memory, slice, thread_index()};
    const DrawBest best = own_slice.draw(b.candidates + int64_t(row) * p.vocab_size);
    if (thread_index() == 0) {
      row_bests(b.bests, row, p)[p.num_chunks + slice] = best;
    }
  }
}

// Grid: (rows, 1, 1).
template <typename T>
inline void draw_rows(const DrawParameters& p, const DrawBuffers& b) {
  auto* memory = cut_memory();
  const int row = block_position().x;
  const RowLogits<T> own = own_logits<T>(p, b, row);
  const DrawBest likeliest = likeliest_of(p, b, row, memory->best);
  int token = likeliest.token;
  if (may_be_cut(likeliest, own.options, p.vocab_size)) {
    const RowCut<T> cut = {
        {own, likeliest.logit, p.vocab_size},
        b.tallies + row,
        b.candidates + int64_t(row) * p.vocab_size,
        memory,
        thread_index()};
    const int drawn = cut.draw(row_bests(b.bests, row, p) + p.num_chunks, p.num_slices);
    token = drawn < 0 ? token : drawn;
  }
  if (thread_index() == 0) {
    b.out[row] = metal::max(token, 0);
  }
}

} // namespace pomona
