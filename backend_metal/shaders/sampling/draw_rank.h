// The rank of a token: by logit, equals by lower id. A rank has digits, so that the last token that a cut
// leaves is found digit by digit.
#pragma once

#include <metal_stdlib>

#include "../common/constants.h"
#include "draw_logits.h"

namespace pomona {

// A weight is a whole number; that of the largest logit.
POMONA_CONSTANT float kWeightOne = 1073741824.0f;

// The first digit is how far a logit is below the largest, roughly: so finely that lanes seldom add to the
// same one, and coarser further down. Three are the bits of that float, which is not negative; two are
// the token's id.
POMONA_CONSTANT int kRankDigits = 6;

// Bits of a float's fraction that the first digit does without.
POMONA_CONSTANT int kCoarseBits = 16;

struct Rank {
  uint digits[kRankDigits];
};

inline Rank last_rank() {
  return {{~0u, ~0u, ~0u, ~0u, ~0u, ~0u}};
}

struct RankedToken {
  int token; // -1: none
  float logit;
  float z; // the scaled logit: at most 0

  uint digit(int index) const {
    uint bits = as_type<uint>(metal::fabs(z));
    switch (index) {
      case 0:
        return metal::min(
            (as_type<uint>(1.0f - z) - as_type<uint>(1.0f)) >> kCoarseBits, uint(kRankDigit - 1));
      case 1:
        return bits >> 20;
      case 2:
        return bits >> 10 & 0x3ff;
      case 3:
        return bits & 0x3ff;
      case 4:
        return uint(token) / kRankDigit;
      default:
        return uint(token) % kRankDigit;
    }
  }

  bool shares(Rank rank, int num_digits) const {
    for (int i = 0; i < num_digits; i++) {
      if (digit(i) != rank.digits[i]) {
        return false;
      }
    }
    return true;
  }

  bool is_behind(Rank rank) const {
    for (int i = 0; i < kRankDigits; i++) {
      uint own = digit(i);
      if (own != rank.digits[i]) {
        return own > rank.digits[i];
      }
    }
    return false;
  }

  uint weight() const {
    return uint(metal::precise::exp(z) * kWeightOne + 0.5f);
  }
};

// What a thread has on its way at once; -1: none.
struct TokenIds {
  int ids[kCutRun];
};

struct TokenRun {
  RankedToken tokens[kCutRun];
};

template <typename T>
struct RankedRow {
  RowLogits<T> logits;
  float largest;
  int vocab_size;

  // None where there is no token, or where min_p leaves it out.
  RankedToken rank(LoadedLogit<T> loaded, int token) const {
    if (token < 0) {
      return {-1, 0.0f, 0.0f};
    }
    float logit = logits.value(loaded, token);
    float z = (logit - largest) / logits.options.temperature;
    bool may_come = z > -INFINITY && z >= logits.options.log_min_p;
    // Where the largest was found, a compiler may have rounded otherwise.
    return {may_come ? token : -1, logit, metal::min(z, 0.0f)};
  }

  TokenRun load(TokenIds tokens) const {
    LoadedLogit<T> loaded[kCutRun];
    for (int i = 0; i < kCutRun; i++) {
      loaded[i] = logits.load(tokens.ids[i]);
    }
    TokenRun run;
    for (int i = 0; i < kCutRun; i++) {
      run.tokens[i] = rank(loaded[i], tokens.ids[i]);
    }
    return run;
  }
};

// At least 1, since the first token stays, however small top_p is; a float may be more than the total.
inline uint64_t share_of(uint64_t total, float top_p) {
  uint64_t share = uint64_t(metal::ceil(float(total) * top_p));
  return share < 1 ? 1 : share < total ? share : total;
}

} // namespace pomona
