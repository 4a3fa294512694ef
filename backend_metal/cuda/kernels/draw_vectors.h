// One chunk of a row whose logits alone decide, by 16 bytes at a time: of its two halves of kDrawPairs
// tokens, which are a pair's first and its second, a thread has one vector or two.
//
// Rows are whole vectors, and so are their halves: every pair has a second.
#pragma once

#include "shaders/common/constants.h"
#include "element_vectors.h"
#include "group.h"
#include "shaders/sampling/draw_best.h"
#include "shaders/sampling/random.h"

namespace pomona {

// The largest logit of a warp, of equals that of the lowest token, for all of its lanes.
inline DrawBest largest_of_warp(DrawBest own) {
  // Words in the order of floats, of which both zeros are one.
  const unsigned bits = __float_as_uint(own.logit + 0.0f);
  const unsigned place = bits >> 31 ? ~bits : bits | 1u << 31;
  const unsigned largest = largest_of_warp(place);
  const unsigned token = smallest_of_warp(place == largest ? unsigned(own.token) : ~0u);
  return {float_of_bits(largest >> 31 ? largest ^ 1u << 31 : ~largest), 0.0f, int(token)};
}

// Of a block, for its first warp. `shared` has room for one of each warp.
inline DrawBest largest_of_block(DrawBest own, DrawBest* shared) {
  constexpr int num_warps = kDrawThreads / kSimdWidth;
  own = largest_of_warp(own);
  const int warp = thread_index() / kSimdWidth, lane = thread_index() % kSimdWidth;
  if (lane == 0) {
    shared[warp] = own;
  }
  sync_block();
  return warp == 0 ? largest_of_warp(lane < num_warps ? shared[lane] : no_best()) : own;
}

// A chunk in shared memory, its second half behind the first, for best_of_chunk.
template <typename T>
struct StagedLogits {
  using Loaded = T;

  const T* logits;
  TokenPairs pairs;
  int first_pair;
  DrawOptions options;

  T load(int token) const {
    bool is_second = token >= pairs.distance;
    return logits[token - first_pair + (is_second ? kDrawPairs - pairs.distance : 0)];
  }

  float value(T loaded, int) const {
    return to_float(loaded);
  }
};

template <typename T>
struct ChunkVectors {
  static constexpr int kOfHalf = kDrawPairs / kVectorElements<T>;
  static constexpr int kOfThread = 2 * kOfHalf / kDrawThreads;

  ElementVector<T> vectors[kOfThread];
  TokenPairs pairs;
  int first_pair;

  static int index(int i) {
    return i * kDrawThreads + thread_index();
  }

  // Of the vector's first element; `pairs.vocab_size` where there is none.
  int token(int i) const {
    int pair = first_pair + index(i) % kOfHalf * kVectorElements<T>;
    int before = index(i) < kOfHalf ? 0 : pairs.distance;
    return pair < pairs.distance ? before + pair : pairs.vocab_size;
  }

  // All are on their way at once.
  void load(const T* logits) {
#pragma unroll
    for (int i = 0; i < kOfThread; i++) {
      vectors[i] = load_vector(logits, 1, token(i), pairs.vocab_size, true);
    }
  }

  // Of the thread's tokens, which ascend. A NaN is none.
  DrawBest largest() const {
    DrawBest best = no_best();
#pragma unroll
    for (int i = 0; i < kOfThread; i++) {
      const int first = token(i);
      if (first >= pairs.vocab_size) {
        continue;
      }
#pragma unroll
      for (int e = 0; e < kVectorElements<T>; e++) {
        float logit = element(vectors[i], e);
        if (logit > best.logit) {
          best.logit = logit;
          best.token = first + e;
        }
      }
    }
    return best;
  }

  // By all threads of a block.
  StagedLogits<T> stage(T* to, const DrawOptions& options) const {
#pragma unroll
    for (int i = 0; i < kOfThread; i++) {
      store_words(to + index(i) * kVectorElements<T>, vectors[i].words);
    }
    sync_block();
    return {to, pairs, first_pair, options};
  }
};

} // namespace pomona
