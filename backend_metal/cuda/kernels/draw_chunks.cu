// The best token of each part of a row, with which a draw begins; draw.cu goes on. Where logits alone
// decide and rows allow it, they come by 16 bytes: a draw of many rows waits for little but them.
#include "draw_own_logits.h"
#include "draw_vectors.h"
#include "shaders/sampling/draw_chunk.h"
#include "shaders/sampling/draw_slice.h"
#include "shaders/common/options.h"

// All threads that a multiprocessor can have.
#undef POMONA_LEAST_BLOCKS
#define POMONA_LEAST_BLOCKS , 8

namespace pomona {

// Of a chunk, for its first thread.
template <typename T>
inline DrawBest best_of_vectors(
    const ChunkVectors<T>& vectors,
    const DrawOptions& o,
    int vocab_size,
    int chunk,
    DrawBest* shared) {
  if (takes_largest_logit(o, vocab_size)) {
    return largest_of_block(vectors.largest(), shared);
  }
  const auto staged = vectors.stage(reinterpret_cast<T*>(shared + kDrawThreads), o);
  const DrawBest best = best_of_chunk(staged, vocab_size, chunk, thread_index(), false);
  return best_of_all<kDrawThreads>(best, shared, thread_index(), o.temperature);
}

// Grid: (chunks, rows, 1).
template <typename T>
inline void draw_chunks(const DrawParameters& p, const DrawBuffers& b) {
  auto* shared = reinterpret_cast<DrawBest*>(shared_memory());
  const int chunk = block_position().x, row = block_position().y;
  ChunkVectors<T> vectors = {{}, pairs_of(p.vocab_size), chunk * kDrawPairs};
  if (aligned) {
    // Before the row's options are known, for both to come at once.
    vectors.load(static_cast<const T*>(b.logits) + row * p.row);
  }
  const RowLogits<T> own = own_logits<T>(p, b, row);
  DrawBest best;
  if (aligned && has_own_logits(own.options)) {
    best = best_of_vectors(vectors, own.options, p.vocab_size, chunk, shared);
  } else {
    best = best_of_chunk(
        own,
        p.vocab_size,
        chunk,
        thread_index(),
        takes_largest_logit(own.options, p.vocab_size));
    best = best_of_all<kDrawThreads>(best, shared, thread_index(), own.options.temperature);
  }
  if (thread_index() == 0) {
    row_bests(b.bests, row, p)[chunk] = best;
  }
  if (cuts(own.options, p.vocab_size)) {
    clear_tally(b.tallies + row, chunk, p.num_chunks, thread_index());
  }
}

} // namespace pomona
