// Which tokens min_p, top_k and top_p leave of one row, and the draw among them, by one threadgroup.
//
// Tokens are ranked by logit, equals by lower id, and one stays while the weight ranked before it is
// below a target. For top_k a weight is 1 and the target k; for top_p (Holtzman et al. 2020) a weight
// is the token's probability, as a whole number: sums do not depend on their order. The last token
// that stays is found digit by digit of its rank, by the weight that each value of a digit has among
// the tokens that share those before it. The whole row is read twice, for the first digit and the
// candidates that it leaves: those ahead of its value, which all stay, and the few level with it, which
// the other digits are about.
#pragma once

#include <metal_stdlib>

#include "constants.h"
#include "draw_best.h"
#include "draw_logits.h"
#include "draw_memory.h"
#include "random.h"

namespace pomona {

// A weight is a whole number; that of the largest logit.
POMONA_CONSTANT float kWeightOne = 1073741824.0f;

// Values of the first digit in a unit of scaled logits: so many that lanes seldom add to the same one.
POMONA_CONSTANT float kCoarse = 64.0f;

// The first digit is how far a logit is below the largest, roughly; three are the bits of that float,
// which is not negative; two are the token's id.
POMONA_CONSTANT int kRankDigits = 6;

struct Rank {
  uint digits[kRankDigits];
};

inline Rank last_rank() {
  return {{~0u, ~0u, ~0u, ~0u, ~0u, ~0u}};
}

// Which tokens are gone through.
enum Among { kAmongAll, kAmongCandidates, kAmongLevel };

struct RankedToken {
  int token; // -1: none
  float z; // the scaled logit: at most 0

  uint digit(int index) const {
    uint bits = as_type<uint>(metal::fabs(z));
    switch (index) {
      case 0:
        return uint(metal::min(-z * kCoarse, float(kRankDigit - 1)));
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

// At least 1, since the first token stays, however small top_p is; a float may be more than the total.
inline uint64_t share_of(uint64_t total, float top_p) {
  uint64_t share = uint64_t(metal::ceil(float(total) * top_p));
  return share < 1 ? 1 : share < total ? share : total;
}

template <typename T>
struct RowCut {
  RowLogits<T> row;
  device int* candidates; // room for the vocabulary: those ahead first, those level from the end
  threadgroup CutMemory<Counter>* memory;
  float largest;
  int vocab_size;
  int thread_index;

  // A token that min_p leaves, or none.
  RankedToken load(int index, int count, Among among) const {
    if (index >= count) {
      return {-1, 0.0f};
    }
    int token = token_at(index, among);
    float z = (row.at(token) - largest) / row.options.temperature;
    bool may_come = z > -INFINITY && z >= row.options.log_min_p;
    // Where the largest was found, a compiler may have rounded otherwise.
    return {may_come ? token : -1, metal::min(z, 0.0f)};
  }

  int token_at(int index, Among among) const {
    if (among == kAmongAll) {
      return index;
    }
    int num_ahead = among == kAmongLevel ? 0 : int(get_counter(&memory->num_ahead));
    return candidates[index < num_ahead ? index : vocab_size - 1 - (index - num_ahead)];
  }

  int count_of(Among among) const {
    if (among == kAmongAll) {
      return vocab_size;
    }
    int num_level = int(get_counter(&memory->num_level));
    return among == kAmongLevel ? num_level : num_level + int(get_counter(&memory->num_ahead));
  }

  // Adds up the weights of the tokens that share all digits before this one with `last`, by this
  // one's value: of all values, or of all but the last where they are counts. Those behind `limit`
  // are out.
  void weigh(int digit, Rank last, Rank limit, bool by_weight, Among among) const {
    for (int i = thread_index; i < kRankDigit; i += kCutThreads) {
      set_counter(&memory->low[i], 0);
      set_counter(&memory->high[i], 0);
    }
    sync_group();
    int count = count_of(among);
    for (int first = thread_index; first < count; first += kCutRun * kCutThreads) {
      RankedToken run[kCutRun];
      for (int i = 0; i < kCutRun; i++) {
        run[i] = load(first + i * kCutThreads, count, among);
      }
      for (int i = 0; i < kCutRun; i++) {
        if (run[i].token >= 0 && run[i].shares(last, digit) && !run[i].is_behind(limit)) {
          uint value = run[i].digit(digit);
          uint weight = by_weight ? run[i].weight() : 1;
          // What nobody asks about: at a low temperature it is nearly the whole vocabulary.
          if (weight > 0 && (by_weight || value < kRankDigit - 1)) {
            add(value, weight);
          }
        }
      }
    }
    sync_group();
  }

  void add(uint value, uint weight) const {
    if (add_to_counter(&memory->low[value], weight) + weight < weight) {
      add_to_counter(&memory->high[value], 1);
    }
  }

  uint64_t weight_at(int value) const {
    return uint64_t(get_counter(&memory->high[value])) << 32 | get_counter(&memory->low[value]);
  }

  // Fills memory->runs and memory->total.
  void add_up() const {
    constexpr int kRuns = kRankDigit / kDigitRun;
    if (thread_index < kRuns) {
      uint64_t sum = 0;
      for (int i = 0; i < kDigitRun; i++) {
        sum += weight_at(thread_index * kDigitRun + i);
      }
      memory->runs[thread_index] = sum;
    }
    sync_group();
    if (thread_index == 0) {
      uint64_t sum = 0;
      for (int i = 0; i < kRuns; i++) {
        sum += memory->runs[i];
      }
      memory->total = sum;
    }
    sync_group();
  }

  // The value with which the weight, together with that `before`, reaches the target; the largest
  // where none does. `before` becomes what is ranked before that value.
  uint find(uint64_t target, thread uint64_t& before) const {
    if (thread_index == 0) {
      uint64_t sum = before;
      int run = 0;
      while (run < kRankDigit / kDigitRun - 1 && sum + memory->runs[run] < target) {
        sum += memory->runs[run++];
      }
      int value = run * kDigitRun;
      while (value < kRankDigit - 1 && sum + weight_at(value) < target) {
        sum += weight_at(value++);
      }
      memory->value = value;
      memory->before = sum;
    }
    sync_group();
    before = memory->before;
    uint value = memory->value;
    sync_group();
    return value;
  }

  // Leaves those whose first digit is up to `most`, which are level with it or ahead.
  void collect(uint most) const {
    if (thread_index == 0) {
      set_counter(&memory->num_ahead, 0);
      set_counter(&memory->num_level, 0);
    }
    sync_group();
    for (int first = thread_index; first < vocab_size; first += kCutRun * kCutThreads) {
      RankedToken run[kCutRun];
      for (int i = 0; i < kCutRun; i++) {
        run[i] = load(first + i * kCutThreads, vocab_size, kAmongAll);
      }
      for (int i = 0; i < kCutRun; i++) {
        if (run[i].token < 0 || run[i].digit(0) > most) {
          continue;
        }
        bool is_level = run[i].digit(0) == most;
        int place = add_to_counter(is_level ? &memory->num_level : &memory->num_ahead, 1);
        candidates[is_level ? vocab_size - 1 - place : place] = run[i].token;
      }
    }
    sync_group();
  }

  // The last that stays of those up to `limit`, and one of them. `collected`: the candidates are known.
  Rank last_kept(Rank limit, bool by_weight, bool collected) const {
    uint64_t target = uint64_t(metal::max(row.options.top_k, 1)), before = 0;
    Among among = collected ? kAmongCandidates : kAmongAll;
    Rank last = {};
    for (int digit = 0; digit < kRankDigits; digit++) {
      weigh(digit, last, limit, by_weight, among);
      add_up();
      if (by_weight && digit == 0) {
        target = share_of(memory->total, row.options.top_p);
      }
      last.digits[digit] = find(target, before);
      if (among == kAmongAll) {
        collect(last.digits[0]);
        among = kAmongLevel;
      }
    }
    return last;
  }

  // The token, -1 where none may come.
  int draw() const {
    DrawOptions o = row.options;
    Rank limit = last_rank();
    bool collected = false;
    if (o.top_k < vocab_size) {
      limit = last_kept(limit, false, collected);
      collected = true;
    }
    if (o.top_p < 1.0f) {
      limit = last_kept(limit, true, collected);
      collected = true;
    }
    if (!collected) {
      collect(~0u);
    }
    DrawBest best = no_best();
    TokenPairs pairs = pairs_of(vocab_size);
    int count = count_of(kAmongCandidates);
    for (int i = thread_index; i < count; i += kCutThreads) {
      RankedToken one = load(i, count, kAmongCandidates);
      if (one.token >= 0 && !one.is_behind(limit)) {
        float noise = gumbel(word_of_token(o.key[0], o.key[1], pairs, one.token));
        keep_better(best, {row.at(one.token), noise, one.token}, o.temperature);
      }
    }
    return best_of_all<kCutThreads>(best, memory->best, thread_index, o.temperature).token;
  }
};

} // namespace pomona
