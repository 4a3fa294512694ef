// This step's keys and values on their way to their slots, beside a prefill by warpgroups, which reads them
// where they come from. A token's heads lie next to each other on both sides: then what copies by itself, into
// shared memory and out of it again, takes a warp few instructions and few registers.
#pragma once

#include "slots.h"
#include "warpgroup_block.h"

namespace pomona {

// Writes the block's share of the step's tokens, by one of its warps, of which each lane knows a row: a token's keys
// or its values. Rows that lie together are copied together, by the lane of the first one.
template <typename T, int D, int DV>
class TokenWriter {
 public:
  TokenWriter(
      const AttentionParameters& p,
      const AttentionBuffers& b,
      const WarpgroupBlock<T, D, DV>& block)
      : p_(p), b_(b), block_(block) {
    num_tokens_ = b.cu_seqlens_q[p.num_seqs * p.cu_seqlens_stride];
    stage_rows_ = metal::min(kStageBytes / longest_row(), kWarpThreads);
  }

  void write_all() {
    int slot = start(0);
    for (int stage = 0; rows_of(stage).count > 0; stage++) {
      // More at a time would delay the keys of those that multiply.
      const int next_slot = start(stage + 1);
      store(stage, slot);
      slot = next_slot;
    }
    wait_for_rows_out<0>();
  }

 private:
  static constexpr int kStageBytes = WarpgroupBlock<T, D, DV>::size.write_stage_bytes;

  // Keys of a stage of tokens, or their values in the next one.
  struct Rows {
    int first_token;
    int count;
    bool are_values;
  };

  // Blocks take turns, so that all of them are near the keys and values that those who multiply read.
  Rows rows_of(int stage) const {
    const int chunk = stage / 2 * grid_size().x + block_position().x;
    const int first = metal::min(chunk * stage_rows_, num_tokens_);
    const int end = metal::min(first + stage_rows_, num_tokens_);
    return {first, end - first, stage % 2 != 0};
  }

  int longest_row() const {
    return p_.num_kv_heads * (D > DV ? D : DV) * int(sizeof(T));
  }

  int row_bytes(Rows rows) const {
    return p_.num_kv_heads * (rows.are_values ? DV : D) * int(sizeof(T));
  }

  unsigned char* staged(int stage, Rows rows) const {
    return block_.staged_writes() + stage % kWriteStages * kStageBytes +
        lane_index() * row_bytes(rows);
  }

  // The slot of the lane's row.
  int start(int stage) {
    const Rows rows = rows_of(stage);
    const int token = rows.first_token + lane_index(), bytes = row_bytes(rows);
    // Until what was there before has left: one other stage is to be stored, rows of the rest may be leaving.
    wait_for_rows_out<kWriteStages - 2>();
    sync_warp();
    const int64_t stride = (rows.are_values ? p_.v : p_.k).token;
    // Since copies begin one after another.
    const bool together = stride * int(sizeof(T)) == bytes;
    const int own = together ? (lane_index() == 0 ? rows.count : 0) : lane_index() < rows.count;
    arrive_with_row(
        block_.barriers().full_writes[stage % kWriteStages],
        staged(stage, rows),
        static_cast<const T*>(rows.are_values ? b_.v : b_.k) + token * stride,
        own * bytes);
    // Nobody waits for it before the row is there.
    return lane_index() < rows.count ? b_.slot_mapping[token * p_.slot_mapping_stride] : -1;
  }

  void store(int stage, int slot) {
    const Rows rows = rows_of(stage);
    const CacheStrides strides = rows.are_values ? p_.v_cache : p_.k_cache;
    const int bytes = row_bytes(rows), lane = lane_index();
    // Rows whose slots follow each other in a block leave together.
    const int before = shuffle(unsigned(slot), metal::max(lane - 1, 0));
    const bool follows = lane > 0 && slot >= 0 && slot == before + 1 && slot % block_size != 0 &&
        strides.slot * int(sizeof(T)) == bytes;
    const unsigned others = vote(!follows) >> lane >> 1; // that begin behind the lane's
    const int run = others != 0 ? count_bits(others ^ (others - 1)) : kWarpThreads - lane;
    const int own = slot >= 0 && !follows ? run * bytes : 0;
    wait(block_.barriers().full_writes[stage % kWriteStages], stage / kWriteStages % 2);
    if (own > 0) {
      T* cache = static_cast<T*>(rows.are_values ? b_.v_cache : b_.k_cache);
      copy_row_out(cache + slot_offset(strides, slot), staged(stage, rows), own);
    }
    end_rows_out();
  }

  const AttentionParameters& p_;
  const AttentionBuffers& b_;
  const WarpgroupBlock<T, D, DV>& block_;
  int num_tokens_;
  int stage_rows_;
};

} // namespace pomona
