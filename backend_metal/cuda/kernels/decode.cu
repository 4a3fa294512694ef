// Attention of sequences with one query token: flash-decoding.
//
// T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for long-context inference" (2023).
//
// A block owns one split of the keys of one sequence and K/V head (decode_splits.h), for up to 16 query heads
// of that head's group: K and V are read from memory once for all of them. Its warps share the keys of a
// tile. A row with one split is finished here. The others' states are folded by the last block of the
// splits, or where there may be many by `decode_reduce`. Where nobody else writes the token's
// key and value to their slot, the block of the last split does: nobody reads them there yet. Lengths,
// tables and the keys of tokens before may be there long before those of the step are: then they are
// read while the kernel before still runs.
#include "attend.h"
#include "decode_splits.h"
#include "fold_splits.h"
#include "slots.h"

#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

// Of one K/V head.
template <typename T, int D, int DV>
inline void write_new_token(
    const AttentionParameters& p, const AttentionBuffers& b, Sequence seq, int kv_head) {
  constexpr int threads = Tile<T, D, DV, true>::threads;
  const int64_t token = seq.first_token;
  const int slot = b.slot_mapping[token * p.slot_mapping_stride];
  if (slot < 0) {
    return;
  }
  copy_head(
      static_cast<T*>(b.k_cache) + slot_offset(p.k_cache, slot) + kv_head * p.k_cache.head,
      static_cast<const T*>(b.k) + token * p.k.token + kv_head * p.k.head,
      D,
      threads);
  copy_head(
      static_cast<T*>(b.v_cache) + slot_offset(p.v_cache, slot) + kv_head * p.v_cache.head,
      static_cast<const T*>(b.v) + token * p.v.token + kv_head * p.v.head,
      DV,
      threads);
}

// Grid: (splits of all rows, 1, 1).
template <typename T, int D, int DV>
inline void decode(const AttentionParameters& p, const AttentionBuffers& b) {
  constexpr int kFloats = 2 + DV;
  let_next_begin();
  if (!reads_ahead) {
    wait_for_kernels_before();
  }
  auto meet_kernels_before = [] {
    if (reads_ahead) {
      wait_for_kernels_before();
    }
  };
  const DecodeSplits<Tile<T, D, DV, true>::keys> splits(p, b);
  const DecodeSplit own = splits.find(block_position().x);
  const Sequence seq = own.seq;
  if (seq.index == p.num_seqs) {
    meet_kernels_before();
    return;
  }
  const int kv_head = own.unit / splits.passes;
  const int first_row = own.unit % splits.passes * kTileRows;
  const TileRows owned{first_row, metal::min(first_row + kTileRows, p.group) - 1};
  float* states = b.partials + decode_partial(p, own.first_block, kFloats); // of the unit
  const int stride = decode_partial(p, 1, kFloats);
  attend<T, D, DV, true>(
      p,
      b,
      seq,
      kv_head,
      owned,
      own.keys,
      meet_kernels_before,
      [&] {
        if (has_new_tokens && writes_new_tokens && first_row == 0 &&
            own.split == own.num_splits - 1) {
          write_new_token<T, D, DV>(p, b, seq, kv_head);
        }
      },
      [&](int row, float largest, float sum) {
        PartialRow partial{nullptr, nullptr};
        if (has_partials && own.num_splits > 1) {
          float* state_of_row = states + own.split * stride + (row - first_row) * kFloats;
          partial = {state_of_row, state_of_row + 2};
        }
        return end_of_row<T, DV>(p, b, seq, kv_head, row, largest, sum, partial);
      });
  if (!folds_splits || own.num_splits == 1 ||
      !is_last_block(b.counters + own.first_block, own.num_splits)) {
    return;
  }
  const int num_pairs = (owned.last - first_row + 1) * (DV / 2);
  for (int i = thread_index(); i < num_pairs; i += Tile<T, D, DV, true>::threads) {
    const int row = i / (DV / 2), head = kv_head * p.group + first_row + row;
    fold_pair<T, DV>(
        out_row<T, DV>(p, b, seq, 0, head),
        states + row * kFloats,
        stride,
        own.num_splits,
        has_sinks ? b.sinks[head * p.sinks_stride] : 0.0f,
        i % (DV / 2) * 2);
  }
}

} // namespace pomona
