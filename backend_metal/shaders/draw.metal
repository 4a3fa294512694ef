// The draw of one token for each row of logits: draw_chunks finds the best of each part of a row, and
// draw_rows the best of these, or, where min_p, top_k or top_p leave tokens out, of those that stay.
#include <metal_stdlib>

#include "bindings.h"
#include "group.h"
#include "draw_chunk.h"
#include "draw_cut.h"

// Grid: (chunks, rows, 1).
template <typename T>
[[kernel, max_total_threads_per_threadgroup(pomona::kDrawThreads)]] void draw_chunks(
    constant pomona::DrawParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* logits [[buffer(POMONA_BUFFER_LOGITS)]],
    const device pomona::DrawOptions* options [[buffer(POMONA_BUFFER_DRAW_OPTIONS)]],
    const device uint* masks [[buffer(POMONA_BUFFER_MASKS)]],
    const device int* counts [[buffer(POMONA_BUFFER_COUNTS)]],
    const device int* bias_tokens [[buffer(POMONA_BUFFER_BIAS_IDS)]],
    const device float* biases [[buffer(POMONA_BUFFER_BIASES)]],
    device pomona::DrawBest* bests [[buffer(POMONA_BUFFER_CHUNK_BESTS)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  threadgroup DrawBest shared[kDrawThreads];
  int chunk = group_position.x, row = group_position.y;
  DrawOptions o = options[row];
  RowLogits<T> own = row_logits(logits, masks, counts, bias_tokens, biases, o, row, p);
  DrawBest best = best_of_chunk(own, p.vocab_size, chunk, thread_index);
  best = best_of_all<kDrawThreads>(best, shared, thread_index, o.temperature);
  if (thread_index == 0) {
    bests[int64_t(row) * p.num_chunks + chunk] = best;
  }
}

// Grid: (rows, 1, 1).
template <typename T>
[[kernel, max_total_threads_per_threadgroup(pomona::kCutThreads)]] void draw_rows(
    constant pomona::DrawParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* logits [[buffer(POMONA_BUFFER_LOGITS)]],
    const device pomona::DrawOptions* options [[buffer(POMONA_BUFFER_DRAW_OPTIONS)]],
    const device uint* masks [[buffer(POMONA_BUFFER_MASKS)]],
    const device int* counts [[buffer(POMONA_BUFFER_COUNTS)]],
    const device int* bias_tokens [[buffer(POMONA_BUFFER_BIAS_IDS)]],
    const device float* biases [[buffer(POMONA_BUFFER_BIASES)]],
    const device pomona::DrawBest* bests [[buffer(POMONA_BUFFER_CHUNK_BESTS)]],
    device int* candidates [[buffer(POMONA_BUFFER_CANDIDATES)]],
    device int* out [[buffer(POMONA_BUFFER_OUT)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  threadgroup CutMemory<Counter> memory;
  int64_t row = group_position.x;
  DrawOptions o = options[row];
  DrawBest best = best_of_chunks(
      bests + row * p.num_chunks, p.num_chunks, o.temperature, thread_index);
  best = best_of_all<kCutThreads>(best, memory.best, thread_index, o.temperature);
  int token = best.token;
  // Differences to an infinity are none.
  if (token >= 0 && best.logit < INFINITY && cuts(o, p.vocab_size)) {
    RowLogits<T> own = row_logits(logits, masks, counts, bias_tokens, biases, o, row, p);
    RowCut<T> cut = {
        own, candidates + row * p.vocab_size, &memory, best.logit, p.vocab_size, int(thread_index)};
    int drawn = cut.draw();
    token = drawn < 0 ? token : drawn;
  }
  if (thread_index == 0) {
    out[row] = metal::max(token, 0);
  }
}
