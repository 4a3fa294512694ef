// The draw of one token for each row of logits: draw_chunks finds the best of each part of a row, and
// draw_rows the best of these. Where rows leave tokens out by min_p, top_k or top_p, draw_weights and
// draw_slices come between them, of which draw_slice.h tells: they go over such rows, and draw_rows finds
// the best of those that stay.
#include <metal_stdlib>

#include "../common/bindings.h"
#include "group.h"
#include "draw_chunk.h"
#include "draw_cut.h"
#include "draw_slice.h"

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
    device pomona::DrawBest* bests [[buffer(POMONA_BUFFER_BESTS)]],
    device pomona::RowTally<pomona::Counter>* tallies [[buffer(POMONA_BUFFER_TALLIES)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  threadgroup DrawBest shared[kDrawThreads];
  int chunk = group_position.x, row = group_position.y;
  DrawOptions o = options[row];
  RowLogits<T> own = row_logits(logits, masks, counts, bias_tokens, biases, o, row, p);
  DrawBest best = best_of_chunk(
      own, p.vocab_size, chunk, thread_index, takes_largest_logit(o, p.vocab_size));
  best = best_of_all<kDrawThreads>(best, shared, thread_index, o.temperature);
  if (thread_index == 0) {
    row_bests(bests, row, p)[chunk] = best;
  }
  if (cuts(o, p.vocab_size)) {
    clear_tally(tallies + row, chunk, p.num_chunks, thread_index);
  }
}

// Grid: (slices, rows, 1), as of draw_slices.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(pomona::kCutThreads)]] void draw_weights(
    constant pomona::DrawParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* logits [[buffer(POMONA_BUFFER_LOGITS)]],
    const device pomona::DrawOptions* options [[buffer(POMONA_BUFFER_DRAW_OPTIONS)]],
    const device uint* masks [[buffer(POMONA_BUFFER_MASKS)]],
    const device int* counts [[buffer(POMONA_BUFFER_COUNTS)]],
    const device int* bias_tokens [[buffer(POMONA_BUFFER_BIAS_IDS)]],
    const device float* biases [[buffer(POMONA_BUFFER_BIASES)]],
    const device pomona::DrawBest* bests [[buffer(POMONA_BUFFER_BESTS)]],
    device pomona::RowTally<pomona::Counter>* tallies [[buffer(POMONA_BUFFER_TALLIES)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  threadgroup CutMemory<Counter> memory;
  int slice = group_position.x, row = group_position.y;
  DrawOptions o = options[row];
  if (!weighs(o, p.vocab_size)) {
    return;
  }
  DrawBest likeliest = best_of_chunks(
      row_bests(bests, row, p), p.num_chunks, o.temperature, memory.best, thread_index);
  if (may_be_cut(likeliest, o, p.vocab_size)) {
    RowLogits<T> own = row_logits(logits, masks, counts, bias_tokens, biases, o, row, p);
    RowSlice<T> own_slice = {
        {own, likeliest.logit, p.vocab_size}, tallies + row, &memory, slice, int(thread_index)};
    own_slice.weigh();
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(pomona::kCutThreads)]] void draw_slices(
    constant pomona::DrawParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* logits [[buffer(POMONA_BUFFER_LOGITS)]],
    const device pomona::DrawOptions* options [[buffer(POMONA_BUFFER_DRAW_OPTIONS)]],
    const device uint* masks [[buffer(POMONA_BUFFER_MASKS)]],
    const device int* counts [[buffer(POMONA_BUFFER_COUNTS)]],
    const device int* bias_tokens [[buffer(POMONA_BUFFER_BIAS_IDS)]],
    const device float* biases [[buffer(POMONA_BUFFER_BIASES)]],
    device pomona::DrawBest* bests [[buffer(POMONA_BUFFER_BESTS)]],
    device int* candidates [[buffer(POMONA_BUFFER_CANDIDATES)]],
    device pomona::RowTally<pomona::Counter>* tallies [[buffer(POMONA_BUFFER_TALLIES)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  threadgroup CutMemory<Counter> memory;
  int slice = group_position.x, row = group_position.y;
  DrawOptions o = options[row];
  if (!cuts(o, p.vocab_size)) {
    return;
  }
  DrawBest likeliest = best_of_chunks(
      row_bests(bests, row, p), p.num_chunks, o.temperature, memory.best, thread_index);
  if (may_be_cut(likeliest, o, p.vocab_size)) {
    RowLogits<T> own = row_logits(logits, masks, counts, bias_tokens, biases, o, row, p);
    RowSlice<T> own_slice = {
        {own, likeliest.logit, p.vocab_size}, tallies + row, &memory, slice, int(thread_index)};
    DrawBest best = own_slice.draw(candidates + int64_t(row) * p.vocab_size);
    if (thread_index == 0) {
      row_bests(bests, row, p)[p.num_chunks + slice] = best;
    }
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
    const device pomona::DrawBest* bests [[buffer(POMONA_BUFFER_BESTS)]],
    const device int* candidates [[buffer(POMONA_BUFFER_CANDIDATES)]],
    const device pomona::RowTally<pomona::Counter>* tallies [[buffer(POMONA_BUFFER_TALLIES)]],
    device int* out [[buffer(POMONA_BUFFER_OUT)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  threadgroup CutMemory<Counter> memory;
  int row = group_position.x;
  DrawOptions o = options[row];
  DrawBest likeliest = best_of_chunks(
      row_bests(bests, row, p), p.num_chunks, o.temperature, memory.best, thread_index);
  int token = likeliest.token;
  if (may_be_cut(likeliest, o, p.vocab_size)) {
    RowLogits<T> own = row_logits(logits, masks, counts, bias_tokens, biases, o, row, p);
    RowCut<T> cut = {
        {own, likeliest.logit, p.vocab_size},
        tallies + row,
        candidates + int64_t(row) * p.vocab_size,
        &memory,
        int(thread_index)};
    int drawn = cut.draw(row_bests(bests, row, p) + p.num_chunks, p.num_slices);
    token = drawn < 0 ? token : drawn;
  }
  if (thread_index == 0) {
    out[row] = metal::max(token, 0);
  }
}
