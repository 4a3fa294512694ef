// What a threadgroup does with one slice of a row that leaves tokens out. For the whole row to be gone
// over by the whole device, its threadgroups meet in the row's tally, between kernels.
//
// First, the weights of the first digit's values are added up. Then these tell the first digit of the last
// token that stays. Tokens ahead of it stay: the best of them is drawn here, unless top_p is yet to cut
// what top_k leaves. Those level with it are few; they are listed for whoever goes on with the row.
#pragma once

#include <metal_stdlib>

#include "../common/constants.h"
#include "draw_best.h"
#include "draw_histogram.h"
#include "draw_memory.h"
#include "draw_rank.h"
#include "random.h"

namespace pomona {

// Tokens that a thread goes over, by twos that share their random words.
POMONA_CONSTANT int kSliceRun = 2 * kSlicePairs / kCutThreads;

// By a threadgroup of each chunk, before anybody adds to it.
inline void clear_tally(
    device RowTally<Counter>* tally, int chunk, int num_chunks, int thread_index) {
  int step = num_chunks * kDrawThreads;
  for (int i = chunk * kDrawThreads + thread_index; i < kRankDigit; i += step) {
    set_counter(&tally->low[i], 0);
    set_counter(&tally->high[i], 0);
  }
  if (chunk == 0 && thread_index == 0) {
    set_counter(&tally->num_ahead, 0);
    set_counter(&tally->num_level, 0);
  }
}

template <typename T>
struct RowSlice {
  RankedRow<T> row;
  device RowTally<Counter>* tally;
  threadgroup CutMemory<Counter>* memory;
  int slice;
  int thread_index;

  Histogram histogram() const {
    return {&memory->histogram, thread_index};
  }

  bool has(int index) const {
    return slice * kSlicePairs + index / 2 * kCutThreads < pairs_of(row.vocab_size).distance;
  }

  int pair_at(int index) const {
    return slice * kSlicePairs + index / 2 * kCutThreads + thread_index;
  }

  // Of those that this thread goes over; -1 behind the last.
  int token_at(int index) const {
    TokenPairs pairs = pairs_of(row.vocab_size);
    int pair = pair_at(index);
    if (index % 2 == 0) {
      return pair < pairs.distance ? pair : -1;
    }
    return pairs.has_second(pair) ? pair + pairs.distance : -1;
  }

  TokenRun load(int first) const {
    TokenIds tokens;
    for (int i = 0; i < kCutRun; i++) {
      tokens.ids[i] = token_at(first + i);
    }
    return row.load(tokens);
  }

  void weigh() const {
    bool by_weight = !cuts_by_count(row.logits.options, row.vocab_size);
    histogram().clear();
    PendingWeight pending = {0, 0};
    for (int first = 0; first < kSliceRun && has(first); first += kCutRun) {
      TokenRun run = load(first);
      for (int i = 0; i < kCutRun; i++) {
        if (run.tokens[i].token >= 0) {
          histogram().add(pending, run.tokens[i], 0, by_weight);
        }
      }
    }
    histogram().add(pending);
    sync_group();
    for (int i = thread_index; i < kRankDigit; i += kCutThreads) {
      add_in_two_words(&tally->low[i], &tally->high[i], histogram().weight_at(i));
    }
  }

  // By each of the row's threadgroups for itself: that is cheaper than another kernel.
  FirstCut first_cut() const {
    DrawOptions o = row.logits.options;
    bool by_count = cuts_by_count(o, row.vocab_size);
    if (!weighs(o, row.vocab_size)) {
      return {0, 0, ~0u, 0};
    }
    for (int i = thread_index; i < kRankDigit; i += kCutThreads) {
      set_counter(&memory->histogram.low[i], get_counter(&tally->low[i]));
      set_counter(&memory->histogram.high[i], get_counter(&tally->high[i]));
    }
    sync_group();
    histogram().add_up();
    uint64_t target =
        by_count ? uint64_t(metal::max(o.top_k, 1)) : share_of(histogram().total(), o.top_p);
    uint64_t before = 0;
    uint digit = histogram().find(target, before);
    return {target, before, digit, 0};
  }

  // The best of those that surely stay.
  DrawBest draw(device int* candidates) const {
    DrawOptions o = row.logits.options;
    FirstCut cut = first_cut();
    if (thread_index == 0) {
      set_counter(&memory->num_ahead, 0);
      set_counter(&memory->num_level, 0);
      if (slice == 0) {
        tally->first = cut;
      }
    }
    sync_group();
    bool lists_ahead = cuts_by_count(o, row.vocab_size) && cuts_by_weight(o);
    DrawBest best = no_best();
    uint ahead = 0, level = 0; // a bit for each of the thread's tokens
    for (int first = 0; first < kSliceRun && has(first); first += kCutRun) {
      TokenRun run = load(first);
      for (int i = 0; i < kCutRun; i++) {
        RankedToken one = run.tokens[i];
        uint digit = one.digit(0);
        ahead |= uint(one.token >= 0 && digit < cut.digit) << (first + i);
        level |= uint(one.token >= 0 && digit == cut.digit) << (first + i);
      }
      for (int i = 0; i < kCutRun && !lists_ahead; i += 2) {
        uint may_come = ahead >> (first + i) & 3;
        keep_better_of_pair(best, run.tokens[i], run.tokens[i + 1], may_come, first + i);
      }
    }
    list(lists_ahead ? ahead : 0, level, candidates);
    return best_of_all<kCutThreads>(best, memory->best, thread_index, o.temperature);
  }

  // `may_come`: a bit for each of the two.
  void keep_better_of_pair(
      thread DrawBest& best,
      RankedToken first,
      RankedToken second,
      uint may_come,
      int index) const {
    if (may_come == 0) {
      return;
    }
    DrawOptions o = row.logits.options;
    RandomWords words =
        words_of_pair(o.key[0], o.key[1], pairs_of(row.vocab_size), pair_at(index));
    if (may_come & 1) {
      keep_better(best, {first.logit, gumbel(words.first), first.token}, o.temperature);
    }
    if (may_come & 2) {
      keep_better(best, {second.logit, gumbel(words.second), second.token}, o.temperature);
    }
  }

  // Writes tokens behind those that others have listed.
  void list(uint ahead, uint level, device int* candidates) const {
    uint ahead_place = reserve(&memory->num_ahead, ahead);
    uint level_place = reserve(&memory->num_level, level);
    sync_group();
    if (thread_index == 0) {
      memory->first_ahead = add_to_counter(&tally->num_ahead, get_counter(&memory->num_ahead));
      memory->first_level = add_to_counter(&tally->num_level, get_counter(&memory->num_level));
    }
    sync_group();
    ahead_place += memory->first_ahead;
    level_place += memory->first_level;
    for (int index = 0; index < kSliceRun; index++) {
      if (ahead >> index & 1) {
        candidates[ahead_place++] = token_at(index);
      }
      if (level >> index & 1) {
        candidates[row.vocab_size - 1 - int(level_place++)] = token_at(index);
      }
    }
  }

  static uint reserve(threadgroup Counter* count, uint bits) {
    uint num_bits = 0;
    for (; bits != 0; bits &= bits - 1) {
      num_bits++;
    }
    return num_bits > 0 ? add_to_counter(count, num_bits) : 0;
  }
};

} // namespace pomona
