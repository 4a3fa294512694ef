// The Gumbel-max trick: of the tokens, the one with the most of logit + temperature * noise is drawn.
// At temperature 0 it is that of the largest logit. Whoever includes it has `sync_group`.
#pragma once

#include <metal_stdlib>

#include "draw_memory.h"

namespace pomona {

inline DrawBest no_best() {
  return {-INFINITY, 0.0f, -1};
}

// Gumbel noise is -log(-log(1 - u)): its upper tail, which decides draws, comes from u near 0, where
// floats are dense.
inline float gumbel(uint word) {
  float u = float(word) * (1.0f / 4294967296.0f);
  u = metal::min(u, 1.0f - 1.0f / 16777216.0f);
  u = metal::max(u, 1.0f / 8589934592.0f);
  float complement = 1.0f - u;
  // What rounding took from the complement is added back.
  float exponential = (u - (1.0f - complement)) - metal::precise::log(complement);
  return -metal::precise::log(exponential);
}

// Of equals the lower token. By differences: logits are large beside what a low temperature leaves of
// noise. A token with a logit of minus infinity or NaN must not be asked about.
inline bool beats(DrawBest a, DrawBest b, float temperature) {
  float ahead = a.logit == b.logit ? 0.0f : a.logit - b.logit;
  float behind = temperature * (b.noise - a.noise);
  return ahead > behind || (ahead == behind && a.token < b.token);
}

inline void keep_better(thread DrawBest& best, DrawBest other, float temperature) {
  if (other.token >= 0 && (best.token < 0 || beats(other, best, temperature))) {
    best = other;
  }
}

// Of a whole threadgroup, for all of its threads. `shared` has room for one of each. In steps of eight:
// waiting for all costs more than a few comparisons.
template <int THREADS>
inline DrawBest best_of_all(
    DrawBest own, threadgroup DrawBest* shared, int thread_index, float temperature) {
  shared[thread_index] = own;
  sync_group();
  for (int count = THREADS; count > 1;) {
    int left = count > 8 ? count / 8 : 1;
    if (thread_index < left) {
      for (int i = thread_index + left; i < count; i += left) {
        keep_better(own, shared[i], temperature);
      }
      shared[thread_index] = own;
    }
    sync_group();
    count = left;
  }
  DrawBest best = shared[0];
  sync_group();
  return best;
}

} // namespace pomona
