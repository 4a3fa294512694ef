// This step's keys and values on their way to their slots, beside a prefill by warpgroups, which reads them
// where they come from. A token's heads lie next to each other on both sides: then what copies by itself, into
// shared memory and out of it again, takes a warp few instructions and few registers.
#pragma once

#include "cuda/slots.h"
#include "cuda/warpgroup_block.h"

namespace pomona {

// Writes the block's share of the step's tokens, by one of its warps, of which each lane has a row: a token's keys
// or its values.
template <typename T, int D, int DV>
class TokenWriter {
 public:
  TokenWriter(
      const AttentionParameters& p,
      const AttentionBuffers& b,
      const WarpgroupBlock<T, D, DV>& block)
      : p_(p), b_(b), block_(block) {
    const int num_tokens = b.cu_seqlens_q[p.num_seqs * p.cu_seqlens_stride];
    auto tokens_before = [&](int index) {
      return int(int64_t(num_tokens) * index / grid_size().x);
    };
    first_token_ = tokens_before(block_position().x);
    num_rows_ = 2 * (tokens_before(block_position().x + 1) - first_token_);
    stage_rows_ = metal::min(kStageBytes / longest_row(), kWarpThreads);
  }

  // Has some more written; whether there was anything.
  bool write_some() {
    if (stored_ * stage_rows_ >= num_rows_) {
      return false;
    }
    // More at a time would delay the keys of those that multiply.
    if (stored_ == 0) {
      next_slot_ = start(0);
    }
    const int slot = next_slot_;
    next_slot_ = start(stored_ + 1);
    store(slot);
    stored_++;
    return true;
  }

  // All of the rest.
  void finish() {
    while (write_some()) {
    }
    wait_for_rows_out<0>();
  }

 private:
  static constexpr int kStageBytes = WarpgroupBlock<T, D, DV>::size.write_stage_bytes;

  struct Row {
    int token;
    bool is_value;
    bool exists;
  };

  Row row_of(int stage) const {
    const int row = stage * stage_rows_ + lane_index();
    return {first_token_ + row / 2, row % 2 == 1, lane_index() < stage_rows_ && row < num_rows_};
  }

  int longest_row() const {
    return p_.num_kv_heads * (D > DV ? D : DV) * int(sizeof(T));
  }

  int row_bytes(Row row) const {
    return p_.num_kv_heads * (row.is_value ? DV : D) * int(sizeof(T));
  }

  unsigned char* staged(int stage) const {
    return block_.staged_writes() + stage % kWriteStages * kStageBytes + lane_index() * longest_row();
  }

  // The slot of the lane's row.
  int start(int stage) {
    const Row row = row_of(stage);
    // Until what was there before has left: one other stage is to be stored, rows of the rest may be leaving.
    wait_for_rows_out<kWriteStages - 2>();
    const T* rows = static_cast<const T*>(row.is_value ? b_.v : b_.k);
    arrive_with_row(
        block_.barriers().full_writes[stage % kWriteStages],
        staged(stage),
        rows + row.token * (row.is_value ? p_.v : p_.k).token,
        row.exists ? row_bytes(row) : 0);
    // Nobody waits for it before the row is there.
    return row.exists ? b_.slot_mapping[row.token * p_.slot_mapping_stride] : -1;
  }

  void store(int slot) {
    const Row row = row_of(stored_);
    wait(block_.barriers().full_writes[stored_ % kWriteStages], stored_ / kWriteStages % 2);
    if (slot >= 0) {
      T* cache = static_cast<T*>(row.is_value ? b_.v_cache : b_.k_cache);
      copy_row_out(
          cache + slot_offset(row.is_value ? p_.v_cache : p_.k_cache, slot),
          staged(stored_),
          row_bytes(row));
    }
    end_rows_out();
  }

  const AttentionParameters& p_;
  const AttentionBuffers& b_;
  const WarpgroupBlock<T, D, DV>& block_;
  int first_token_;
  int num_rows_;
  int stage_rows_;
  int stored_ = 0; // stages
  int next_slot_ = -1; // of the lane's row in the next one
};

} // namespace pomona
