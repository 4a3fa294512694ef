// Scans of one row of logits. The last few go through a vector of their own, so that where a token
// lies changes nothing.
#pragma once

#include "cpu/launch/draw_arguments.h"
#include "cpu/kernels/elementary.h"
#include "cpu/kernels/sampling/random.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// As many as there are from `from` on, up to a vector of them; others are minus infinity.
inline Floats load_some(const float* from, int64_t left) {
  if (left >= kLanes) {
    return load(from);
  }
  Floats v = fill(-kInfinity);
  __builtin_memcpy(&v, from, left * sizeof(float));
  return v;
}

// Fills in the maxima of blocks, and returns the largest.
inline float find_maxima(const float* logits, int64_t count, float* maxima) {
  Floats largest = fill(-kInfinity);
  for (int64_t first = 0; first < count; first += kMaximaBlock) {
    int64_t last = first + kMaximaBlock < count ? first + kMaximaBlock : count;
    Floats most = fill(-kInfinity);
    for (int64_t i = first; i < last; i += kLanes) {
      most = max(load_some(logits + i, last - i), most); // which is not a NaN
    }
    maxima[first / kMaximaBlock] = largest_lane(most);
    largest = max(largest, most);
  }
  return largest_lane(largest);
}

inline Floats penalised(Floats logit, Ints count, const Penalties& p) {
  Floats divided = logit / p.repetition, multiplied = logit * p.repetition;
  Floats repeated = logit > 0.0f ? divided : multiplied;
  Ints times = count >> 1;
  Floats present = times > 0 ? fill(p.presence) : Floats{};
  Floats penalty = present + __builtin_convertvector(times, Floats) * p.frequency;
  return (count != 0 ? repeated : logit) - penalty;
}

inline void penalise(const float* logits, int64_t count, Penalties p, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(out + i, penalised(load(logits + i), load_as<Ints>(p.counts + i), p));
  }
  if (i < count) {
    int64_t bytes = (count - i) * 4;
    Ints counts{};
    __builtin_memcpy(&counts, p.counts + i, bytes);
    Floats last = penalised(load_some(logits + i, count - i), counts, p);
    __builtin_memcpy(out + i, &last, bytes);
  }
}

inline Floats scaled(const DrawLogits& row, Floats logits) {
  return (logits - row.largest) / row.temperature;
}

inline Ints weights_of(Floats scaled) {
  return __builtin_convertvector(fma(exp(scaled), fill(kWeightOne), fill(0.5f)), Ints);
}

// Sums of weights: halves of their bits apart, so that a lane can hold those of kMostSteps vectors.
struct WeightSum {
  static constexpr int64_t kMostSteps = 65536;
  UInts low{}, high{};

  void add(Ints weights) {
    low += (UInts)weights & 0x7fff;
    high += (UInts)weights >> 15;
  }

  uint64_t total() const {
    uint64_t sum = 0;
    for (int lane = 0; lane < kLanes; lane++) {
      sum += low[lane] + (uint64_t(high[lane]) << 15);
    }
    return sum;
  }
};

// A scaled logit below this has no weight.
inline constexpr float kLightest = -22.0f;

// Of all tokens together.
inline uint64_t sum_weights(DrawLogits row) {
  constexpr int64_t kPart = WeightSum::kMostSteps * 4;
  static_assert(kLanes >= 4 && kPart % kMaximaBlock == 0, "a part has few enough steps");
  uint64_t sum = 0;
  for (int64_t part = 0; part < row.count; part += kPart) {
    WeightSum weights;
    int64_t part_end = part + kPart < row.count ? part + kPart : row.count;
    for (int64_t first = part; first < part_end; first += kMaximaBlock) {
      float largest = row.maxima[first / kMaximaBlock];
      if ((largest - row.largest) / row.temperature < kLightest) {
        continue;
      }
      int64_t last = first + kMaximaBlock < part_end ? first + kMaximaBlock : part_end;
      for (int64_t i = first; i < last; i += kLanes) {
        weights.add(weights_of(scaled(row, load_some(row.logits + i, last - i))));
      }
    }
    sum += weights.total();
  }
  return sum;
}

// Of single logits: how much lower than the largest they are, in units of the temperature, and
// their weights. All have room for a multiple of the lanes.
inline void weigh(DrawLogits row, const float* logits, int64_t count, float* out, int32_t* weights) {
  for (int64_t i = 0; i < count; i += kLanes) {
    Floats z = scaled(row, load_some(logits + i, count - i));
    store(out + i, z);
    store_as(weights + i, weights_of(z));
  }
}

// Of logits of at least `least`: what they weigh together, and how many they are. `weights` has room
// for a multiple of the lanes.
inline Weighed weigh_from(const float* logits, const int32_t* weights, int64_t count, float least) {
  constexpr int64_t kPart = WeightSum::kMostSteps * 4;
  Weighed all{};
  for (int64_t part = 0; part < count; part += kPart) {
    WeightSum sum;
    Ints negative_count{};
    int64_t part_end = part + kPart < count ? part + kPart : count;
    for (int64_t i = part; i < part_end; i += kLanes) {
      // Beyond the last are minus infinities, which are not counted where `least` is finite.
      Ints is_above = load_some(logits + i, part_end - i) >= least;
      sum.add(load_as<Ints>(weights + i) & is_above);
      negative_count += is_above;
    }
    all.weight += sum.total();
    for (int lane = 0; lane < kLanes; lane++) {
      all.count -= negative_count[lane];
    }
  }
  return all;
}

// Token ids, in order, of logits of at least `least`, and how many.
inline int64_t collect(DrawLogits row, float least, int32_t* ids) {
  int64_t found = 0;
  for (int64_t first = 0; first < row.count; first += kMaximaBlock) {
    if (row.maxima[first / kMaximaBlock] < least) {
      continue;
    }
    int64_t last = first + kMaximaBlock < row.count ? first + kMaximaBlock : row.count;
    for (int64_t i = first; i < last; i++) {
      ids[found] = int32_t(i);
      found += row.logits[i] >= least;
    }
  }
  return found;
}

// The best of those seen.
struct Best {
  float score;
  int32_t id;
};

inline constexpr float kLowestScore = -__FLT_MAX__;
inline constexpr float kSmallestUniform = 1.0f / 8589934592.0f; // 2^-33
inline constexpr float kMostNoise = 22.9f; // of the smallest uniform

// z + noise. Gumbel noise is -log(-log(1 - u)): its upper tail, which decides draws, comes from u
// near 0, where floats are dense.
inline float score_of(float z, uint32_t word) {
  float u = float(word) * (1.0f / 4294967296.0f);
  u = u > 1.0f - 0x1p-24f ? 1.0f - 0x1p-24f : u;
  u = u < kSmallestUniform ? kSmallestUniform : u;
  float complement = 1.0f - u;
  // What rounding took from the complement is added back.
  float exponential = (u - (1.0f - complement)) - __builtin_logf(complement);
  return z - __builtin_logf(exponential);
}

inline void keep_better(Best& best, float score, int32_t id) {
  if (score > best.score || (score == best.score && id < best.id)) {
    best = {score, id};
  }
}

// Never less than score_of, and cheap: -log(1 - u) is at least u, whose exponent is its logarithm.
inline Floats score_bound(Floats z, UInts words) {
  Floats u = __builtin_convertvector((Ints)(words >> 1), Floats) * 0x1p-31f;
  u = max(u, fill(kSmallestUniform));
  Floats exponent = __builtin_convertvector((as_ints(u) >> 23) - 127, Floats);
  return fma(exponent, fill(-0.693148f), z + 1e-3f);
}

// Scores `count` tokens, at most a vector of them.
inline void
score_some(Best& best, Floats z, UInts words, const int32_t* ids, int32_t first_id, int64_t count) {
  Ints promising = score_bound(z, words) >= best.score;
  if (!any(promising)) {
    return;
  }
  for (int lane = 0; lane < kLanes && lane < count; lane++) {
    if (promising[lane]) {
      keep_better(best, score_of(z[lane], words[lane]), ids ? ids[lane] : first_id + lane);
    }
  }
}

// The token of the best score among `ids`, -1 where all logits are minus infinity. `ids` and `z`
// have room for a multiple of the lanes.
inline int32_t
draw_among(const uint32_t* key, const int32_t* ids, const float* z, int64_t count, int64_t size) {
  VocabularyHalves halves(size);
  Best best{kLowestScore, -1};
  for (int64_t i = 0; i < count; i += kLanes) {
    UInts words = random_words(key, halves, load_as<UInts>(ids + i));
    score_some(best, load(z + i), words, ids + i, 0, count - i);
  }
  return best.id;
}

// Whether a token of [first, last) may score better than the best.
inline bool may_win(const DrawLogits& row, const Best& best, int64_t first, int64_t last) {
  float most = -kInfinity;
  for (int64_t block = first / kMaximaBlock; block * kMaximaBlock < last; block++) {
    most = row.maxima[block] > most ? row.maxima[block] : most;
  }
  return (most - row.largest) / row.temperature + kMostNoise >= best.score;
}

inline void score_run(
    const DrawLogits& row, Best& best, const UInts* words, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i += kLanes) {
    Floats z = scaled(row, load_some(row.logits + i, last - i));
    score_some(best, z, words[(i - first) / kLanes], nullptr, int32_t(i), last - i);
  }
}

// The token of the best score among all, -1 where all logits are minus infinity. `likely` is one
// to begin with.
inline int32_t draw_among_all(DrawLogits row, const uint32_t* key, int32_t likely) {
  constexpr int kVectors = 16;
  constexpr int64_t kRun = kVectors * kLanes;
  VocabularyHalves halves(row.count);
  Best best{kLowestScore, -1};
  auto score_one = [&](int32_t id) {
    UInts word = random_words(key, halves, fill_word(id));
    score_some(best, scaled(row, fill(row.logits[id])), word, nullptr, id, 1);
  };
  score_one(likely);
  UInts lanes{};
  for (int lane = 0; lane < kLanes; lane++) {
    lanes[lane] = lane;
  }
  for (int64_t first = 0; first < halves.half; first += kRun) {
    int64_t last = first + kRun < halves.half ? first + kRun : halves.half;
    bool in_first = may_win(row, best, first, last);
    bool in_second = may_win(row, best, first + halves.distance, last + halves.distance);
    if (!in_first && !in_second) {
      continue;
    }
    UInts words[kVectors], others[kVectors];
    for (int v = 0; v < kVectors; v++) {
      UInts ids = lanes + uint32_t(first + v * kLanes);
      Words both = threefry(key, {ids, ids + halves.distance});
      words[v] = both.first;
      others[v] = both.second;
    }
    if (in_first) {
      score_run(row, best, words, first, last);
    }
    if (in_second) {
      score_run(row, best, others, first + halves.distance, last + halves.distance);
    }
  }
  if (halves.half != halves.distance) {
    score_one(int32_t(halves.half));
  }
  return best.id;
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
