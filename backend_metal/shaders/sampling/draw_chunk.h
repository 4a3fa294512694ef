// The best token of one chunk of a row: the likeliest, where what is left of the row is not known yet.
#pragma once

#include <metal_stdlib>

#include "../common/constants.h"
#include "draw_best.h"
#include "draw_logits.h"
#include "random.h"

namespace pomona {

// Whether no noise decides, or not yet.
inline bool takes_largest_logit(DrawOptions o, int vocab_size) {
  return o.temperature == 0.0f || cuts(o, vocab_size);
}

// A chunk is kDrawPairs tokens and those that share their random words. `Row`: RowLogits, or what has the
// chunk's logits.
template <typename Row>
inline DrawBest best_of_chunk(
    Row row, int vocab_size, int chunk, int thread_index, bool takes_largest) {
  const DrawOptions o = row.options;
  const TokenPairs pairs = pairs_of(vocab_size);
  DrawBest best = no_best();
  for (int i = 0; i < kDrawPairs / kDrawThreads; i++) {
    int pair = chunk * kDrawPairs + i * kDrawThreads + thread_index;
    if (pair >= pairs.distance) {
      break;
    }
    RandomWords words = {0, 0};
    if (!takes_largest) {
      words = words_of_pair(o.key[0], o.key[1], pairs, pair);
    }
    int tokens[2] = {pair, pairs.has_second(pair) ? pair + pairs.distance : -1};
    typename Row::Loaded loaded[2] = {row.load(tokens[0]), row.load(tokens[1])};
    for (int second = 0; second < 2; second++) {
      int token = tokens[second];
      float logit = token < 0 ? -INFINITY : row.value(loaded[second], token);
      if (logit > -INFINITY) {
        float noise = takes_largest ? 0.0f : gumbel(second ? words.second : words.first);
        keep_better(best, {logit, noise, token}, o.temperature);
      }
    }
  }
  return best;
}

// Of a row's chunks, and behind them of its slices. `Best` is a pointer to one.
template <typename Best>
inline Best row_bests(Best bests, int row, DrawParameters p) {
  return bests + int64_t(row) * (p.num_chunks + p.num_slices);
}

// Of the chunks, for all threads that rank tokens: by logit alone, where tokens are left out.
inline DrawBest best_of_chunks(
    const device DrawBest* chunks,
    int count,
    float temperature,
    threadgroup DrawBest* shared,
    int thread_index) {
  DrawBest best = no_best();
  for (int i = thread_index; i < count; i += kCutThreads) {
    keep_better(best, chunks[i], temperature);
  }
  return best_of_all<kCutThreads>(best, shared, thread_index, temperature);
}

// Whether a row is ranked: differences to an infinity are none.
inline bool may_be_cut(DrawBest likeliest, DrawOptions o, int vocab_size) {
  return likeliest.token >= 0 && likeliest.logit < INFINITY && cuts(o, vocab_size);
}

} // namespace pomona
