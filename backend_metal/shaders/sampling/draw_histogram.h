// The weight that each value of a digit has among tokens, in a threadgroup's memory, and the value with
// which weights reach a target. Whoever includes it has group.h.
#pragma once

#include <metal_stdlib>

#include "../common/constants.h"
#include "draw_memory.h"
#include "draw_rank.h"

namespace pomona {

// Metal adds to words of 32 bits alone. `Word` is a pointer to a counter, of either memory.
template <typename Word>
inline void add_in_two_words(Word low, Word high, uint64_t weight) {
  uint low_part = uint(weight), high_part = uint(weight >> 32);
  if (low_part > 0) {
    high_part += uint(add_to_counter(low, low_part) + low_part < low_part);
  }
  if (high_part > 0) {
    add_to_counter(high, high_part);
  }
}

// Weights of one value that a thread meets one after the other are added as one: threads that add to
// the same word wait for each other.
struct PendingWeight {
  uint value;
  uint64_t weight;
};

struct Histogram {
  threadgroup HistogramMemory<Counter>* memory;
  int thread_index;

  void clear() const {
    for (int i = thread_index; i < kRankDigit; i += kCutThreads) {
      set_counter(&memory->low[i], 0);
      set_counter(&memory->high[i], 0);
    }
    sync_group();
  }

  // Weights that are 1 are counts: of all values but the last, which is told by those before it. At a low
  // temperature it is nearly the whole vocabulary.
  void add(thread PendingWeight& pending, RankedToken one, int digit, bool by_weight) const {
    uint value = one.digit(digit);
    uint weight = by_weight ? one.weight() : uint(value < kRankDigit - 1);
    if (value != pending.value) {
      add(pending);
      pending = PendingWeight{value, 0};
    }
    pending.weight += weight;
  }

  void add(PendingWeight pending) const {
    add_in_two_words(&memory->low[pending.value], &memory->high[pending.value], pending.weight);
  }

  uint64_t weight_at(int value) const {
    return uint64_t(get_counter(&memory->high[value])) << 32 | get_counter(&memory->low[value]);
  }

  // For `total` and `find`.
  void add_up() const {
    if (thread_index < kRuns) {
      uint64_t sum = 0;
      for (int i = 0; i < kDigitRun; i++) {
        sum += weight_at(thread_index * kDigitRun + i);
      }
      memory->runs[thread_index] = sum;
    }
    sync_group();
    if (thread_index < kLongRuns) {
      memory->long_runs[thread_index] = sum_of(memory->runs + thread_index * kDigitRun, kDigitRun);
    }
    sync_group();
    if (thread_index < kLongestRuns) {
      memory->longest_runs[thread_index] =
          sum_of(memory->long_runs + thread_index * kDigitRun, kDigitRun);
    }
    sync_group();
  }

  uint64_t total() const {
    return sum_of(memory->longest_runs, kLongestRuns);
  }

  // The value with which the weight, together with that `before`, reaches the target; the largest
  // where none does. `before` becomes what is ranked before that value.
  uint find(uint64_t target, thread uint64_t& before) const {
    if (thread_index == 0) {
      uint64_t sum = before;
      int run = find_run(memory->longest_runs, kLongestRuns, target, sum);
      run = run * kDigitRun + find_run(memory->long_runs + run * kDigitRun, kDigitRun, target, sum);
      run = run * kDigitRun + find_run(memory->runs + run * kDigitRun, kDigitRun, target, sum);
      int value = run * kDigitRun, last = value + kDigitRun - 1;
      while (value < last && sum + weight_at(value) < target) {
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

  static uint64_t sum_of(const threadgroup uint64_t* runs, int count) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
      sum += runs[i];
    }
    return sum;
  }

  static int find_run(
      const threadgroup uint64_t* runs, int count, uint64_t target, thread uint64_t& sum) {
    int run = 0;
    while (run < count - 1 && sum + runs[run] < target) {
      sum += runs[run++];
    }
    return run;
  }
};

} // namespace pomona
