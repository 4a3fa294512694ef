#include "cpu/launch/metadata_checks.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/launch/launch_plan.h"

namespace pomona::cpu {

namespace {

struct Range {
  int64_t low = 0;
  int64_t high = 0;

  void add(int64_t value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

void check_below(const char* name, Range range, int64_t limit) {
  if (range.low < 0 || range.high >= limit) {
    std::ostringstream text;
    text << name << " must lie between 0 and " << limit - 1 << ", not " << range.low << " to "
         << range.high;
    throw std::invalid_argument(text.str());
  }
}

void check_bounds(const int32_t* bounds, int num_seqs, int num_tokens) {
  bool rises = bounds[0] == 0 && bounds[num_seqs] == num_tokens &&
      std::is_sorted(bounds, bounds + num_seqs + 1);
  if (rises) {
    return;
  }
  std::string text;
  for (int i = 0; i <= num_seqs; i++) {
    text += (i ? ", " : "") + std::to_string(bounds[i]);
  }
  throw std::invalid_argument(
      "cu_seqlens_q must rise from 0 to num_tokens (" + std::to_string(num_tokens) + "), not [" +
      text + "]");
}

} // namespace

void check_slots(const int32_t* slot_mapping, int num_tokens, int64_t num_slots) {
  Range slots;
  for (int i = 0; i < num_tokens; i++) {
    slots.add(std::max(slot_mapping[i], 0));
  }
  check_below("slot_mapping", slots, num_slots);
}

void check_sequences(const AttentionArguments& a, int num_tokens, int num_blocks) {
  check_bounds(a.cu_seqlens_q, a.num_seqs, num_tokens);
  Range lengths;
  for (int seq = 0; seq < a.num_seqs; seq++) {
    lengths.add(a.seq_lens[seq]);
  }
  check_below("seq_lens", lengths, int64_t(a.max_blocks_per_seq) * a.block_size + 1);
  for (int seq = 0; seq < a.num_seqs; seq++) {
    int q_len = a.cu_seqlens_q[seq + 1] - a.cu_seqlens_q[seq];
    if (q_len == 0) {
      continue;
    }
    // Entries that no key of this launch is read through may hold anything.
    KeyRange keys = visible_keys(a.seq_lens[seq], q_len, 0, q_len - 1, a.window);
    if (!keys.empty()) {
      int first = keys.first / a.block_size, last = (keys.last - 1) / a.block_size;
      const int32_t* table = a.block_tables + int64_t(seq) * a.max_blocks_per_seq;
      Range blocks;
      for (int i = first; i <= last; i++) {
        blocks.add(table[i]);
      }
      check_below("block_tables", blocks, num_blocks);
    }
  }
}

void check_states(const StateSlots& slots, int num_tokens, int num_slots) {
  check_bounds(slots.cu_seqlens_q, slots.num_seqs, num_tokens);
  Range reads, writes;
  for (int seq = 0; seq < slots.num_seqs; seq++) {
    reads.add(std::max(slots.read_slots[seq], 0));
    writes.add(slots.write_slots[seq]);
  }
  check_below("read_slots", reads, num_slots);
  check_below("write_slots", writes, num_slots);
  // One sequence would run over another's state.
  std::vector<bool> written(num_slots);
  for (int seq = 0; seq < slots.num_seqs; seq++) {
    const int32_t slot = slots.write_slots[seq];
    if (written[slot]) {
      throw std::invalid_argument(
          "write_slots must differ from each other, and not hold " + std::to_string(slot) +
          " twice");
    }
    written[slot] = true;
  }
  for (int seq = 0; seq < slots.num_seqs; seq++) {
    const int32_t slot = slots.read_slots[seq];
    if (slot >= 0 && slot != slots.write_slots[seq] && written[slot]) {
      throw std::invalid_argument(
          "read_slots must not hold " + std::to_string(slot) + ", which another sequence writes");
    }
  }
}

} // namespace pomona::cpu
