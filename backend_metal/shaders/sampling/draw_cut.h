// Which tokens min_p, top_k and top_p leave of one row, and the draw among them, by one threadgroup: what
// the slices of draw_slice.h have left to do.
//
// Tokens are ranked by logit, equals by lower id, and one stays while the weight ranked before it is
// below a target. For top_k a weight is 1 and the target k; for top_p (Holtzman et al. 2020) a weight
// is the token's probability, as a whole number: sums do not depend on their order. The last token
// that stays is found digit by digit of its rank, by the weight that each value of a digit has among
// the tokens that share those before it. Slices have found the first digit, and listed the candidates:
// those level with it, which the other digits are about, and, where two cuts follow each other, those
// ahead, which the first of them leaves.
#pragma once

#include <metal_stdlib>

#include "../common/constants.h"
#include "draw_best.h"
#include "draw_histogram.h"
#include "draw_memory.h"
#include "draw_rank.h"
#include "random.h"

namespace pomona {

template <typename T>
struct RowCut {
  RankedRow<T> row;
  const device RowTally<Counter>* tally;
  const device int* candidates; // room for the vocabulary: those ahead first, those level from the end
  threadgroup CutMemory<Counter>* memory;
  int thread_index;

  int listed_ahead() const {
    return int(get_counter(&tally->num_ahead));
  }

  int listed_level() const {
    return int(get_counter(&tally->num_level));
  }

  // Candidates, kCutThreads from one to the next.
  TokenRun load(int first, int num_ahead, int num_level) const {
    TokenIds tokens;
    for (int i = 0; i < kCutRun; i++) {
      int index = first + i * kCutThreads;
      int place = index < num_ahead ? index : row.vocab_size - 1 - (index - num_ahead);
      tokens.ids[i] = index < num_ahead + num_level ? candidates[place] : -1;
    }
    return row.load(tokens);
  }

  // Adds up the weights of the tokens that share all digits before this one with `last`, by this
  // one's value. Those behind `limit` are out.
  void weigh(int digit, Rank last, Rank limit, bool by_weight, int num_ahead) const {
    Histogram histogram = {&memory->histogram, thread_index};
    histogram.clear();
    PendingWeight pending = {0, 0};
    int num_level = listed_level(), count = num_ahead + num_level;
    for (int first = thread_index; first < count; first += kCutRun * kCutThreads) {
      TokenRun run = load(first, num_ahead, num_level);
      for (int i = 0; i < kCutRun; i++) {
        RankedToken one = run.tokens[i];
        if (one.token >= 0 && one.shares(last, digit) && !one.is_behind(limit)) {
          histogram.add(pending, one, digit, by_weight);
        }
      }
    }
    histogram.add(pending);
    sync_group();
    histogram.add_up();
  }

  // Of the row's first cut.
  Rank last_of_first_cut(bool by_weight) const {
    FirstCut first = tally->first;
    Rank last = {};
    last.digits[0] = first.digit;
    return last_kept(last, 1, first.target, first.before, last_rank(), by_weight, 0);
  }

  // Of the cut by top_p of what top_k leaves, up to `limit`.
  Rank last_of_second_cut(Rank limit) const {
    Histogram histogram = {&memory->histogram, thread_index};
    Rank last = {};
    int num_ahead = listed_ahead();
    weigh(0, last, limit, true, num_ahead);
    uint64_t target = share_of(histogram.total(), row.logits.options.top_p), before = 0;
    last.digits[0] = histogram.find(target, before);
    return last_kept(last, 1, target, before, limit, true, num_ahead);
  }

  // The digits that are not known yet.
  Rank last_kept(
      Rank last,
      int num_known,
      uint64_t target,
      uint64_t before,
      Rank limit,
      bool by_weight,
      int num_ahead) const {
    Histogram histogram = {&memory->histogram, thread_index};
    for (int digit = num_known; digit < kRankDigits; digit++) {
      weigh(digit, last, limit, by_weight, num_ahead);
      last.digits[digit] = histogram.find(target, before);
    }
    return last;
  }

  // Of the tokens that are left, the best of each slice among them; -1 where none may come.
  int draw(const device DrawBest* slices, int num_slices) const {
    DrawOptions o = row.logits.options;
    Rank limit = last_rank();
    bool by_count = cuts_by_count(o, row.vocab_size), by_weight = cuts_by_weight(o);
    if (weighs(o, row.vocab_size)) {
      limit = last_of_first_cut(!by_count);
    }
    if (by_count && by_weight) {
      limit = last_of_second_cut(limit);
    }
    DrawBest best = no_best();
    for (int i = thread_index; i < num_slices; i += kCutThreads) {
      keep_better(best, slices[i], o.temperature);
    }
    TokenPairs pairs = pairs_of(row.vocab_size);
    int num_ahead = listed_ahead(), num_level = listed_level();
    int count = num_ahead + num_level;
    for (int first = thread_index; first < count; first += kCutRun * kCutThreads) {
      TokenRun run = load(first, num_ahead, num_level);
      for (int i = 0; i < kCutRun; i++) {
        RankedToken one = run.tokens[i];
        if (one.token >= 0 && !one.is_behind(limit)) {
          float noise = gumbel(word_of_token(o.key[0], o.key[1], pairs, one.token));
          keep_better(best, {one.logit, noise, one.token}, o.temperature);
        }
      }
    }
    return best_of_all<kCutThreads>(best, memory->best, thread_index, o.temperature).token;
  }
};

} // namespace pomona
