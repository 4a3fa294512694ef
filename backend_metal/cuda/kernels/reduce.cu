// Folds the states that `decode` and `prefill` left of rows with several splits. Of a decode a block
// owns a row. Of a prefill, which has few splits and many rows, a warp owns a row, and a lane every 32nd
// pair of dimensions.
#include "decode_splits.h"
#include "fold_splits.h"
#include "prefill_tiles.h"

#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

// By a warp, of which a lane knows a split's weight.
template <typename T, int DV>
inline void reduce_row_by_warp(T* out, const float* states, int num_splits, float sink) {
  constexpr int kStride = prefill_state_floats(DV);
  constexpr int kPairs = (DV / 2 + kWarpThreads - 1) / kWarpThreads;
  // Splits whose outputs are on their way at once: of most head dims 8 pairs, so that there are enough
  // registers for three blocks.
  constexpr int kAhead = kPairs < 4 ? 8 / kPairs : 2;
  static_assert(kMaxPrefillSplits <= kWarpThreads);
  const int lane = thread_index() % kWarpThreads;
  const bool has_split = lane < num_splits;
  float own[2] = {-INFINITY, 0.0f}; // largest, sum
  if (has_split) {
    load_floats(own, states + lane * kStride);
  }
  float weight = 0.0f, totals[kPairs][2] = {};
  float largest = own[0];
  for (int first = 0; first < num_splits; first += kAhead) {
    float ahead[kPairs][kAhead][2];
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
#pragma unroll
      for (int pair = 0; pair < kPairs; pair++) {
        const int dim = 2 * (lane + pair * kWarpThreads);
        ahead[pair][i][0] = ahead[pair][i][1] = 0.0f;
        if (first + i < num_splits && dim < DV) {
          load_floats(ahead[pair][i], states + (first + i) * kStride + kStateBounds + dim);
        }
      }
    }
    // Behind the loads of the first ones: all come at the same time.
    if (first == 0) {
      for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) {
        largest = metal::max(largest, shuffle_xor(largest, mask));
      }
      weight = has_split ? rescale(own[0], exponent_base(largest)) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      const float of_split = shuffle(weight, metal::min(first + i, kWarpThreads - 1));
#pragma unroll
      for (int pair = 0; pair < kPairs; pair++) {
        totals[pair][0] += ahead[pair][i][0] * of_split;
        totals[pair][1] += ahead[pair][i][1] * of_split;
      }
    }
  }
  const float factor = final_factor(largest, warp_sum(own[1] * weight), sink);
#pragma unroll
  for (int pair = 0; pair < kPairs; pair++) {
    const int dim = 2 * (lane + pair * kWarpThreads);
    if (dim < DV) {
      store_pair(out + dim, totals[pair][0] * factor, totals[pair][1] * factor);
    }
  }
}

// KEYS: of a tile of `decode`. Grid: (q heads, sequences, 1).
template <typename T, int DV, int KEYS>
inline void decode_reduce(const AttentionParameters& p, const AttentionBuffers& b) {
  static_assert(sizeof(ReduceMemory<DV>) == decode_reduce_bytes(DV));
  let_next_begin();
  if (!reads_ahead) {
    wait_for_kernels_before();
  }
  const Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, block_position().y);
  const DecodeSplits<KEYS> splits(p, b);
  const int head = block_position().x, row = head % p.group;
  const DecodeSplit first =
      splits.first_of(seq.index, head / p.group * splits.passes + row / kTileRows);
  if (reads_ahead) {
    wait_for_kernels_before();
  }
  // Rows with one split are finished.
  if (seq.q_len != 1 || first.num_splits == 1) {
    return;
  }
  constexpr int kFloats = 2 + DV;
  fold_by_block<T, DV>(
      out_row<T, DV>(p, b, seq, 0, head),
      b.partials + decode_partial(p, first.first_block, kFloats) + row % kTileRows * kFloats,
      decode_partial(p, 1, kFloats),
      first.num_splits,
      has_sinks ? b.sinks[head * p.sinks_stride] : 0.0f);
}

// Grid: (tiles of kPrefillReduceRows rows, K/V heads, 1), a warp a row.
template <typename T, int DV>
inline void prefill_reduce(const AttentionParameters& p, const AttentionBuffers& b) {
  begin_behind_others();
  int tile = block_position().x, kv_head = block_position().y;
  int index = find_sequence_by_warp(p, b.cu_seqlens_q, tile, kPrefillReduceRows);
  Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
  TileRows owned = tile_rows(p, b.cu_seqlens_q, seq, tile, kPrefillReduceRows);
  Splits splits = prefill_splits(p, seq);
  if (owned.empty() || splits.count <= 1) {
    return;
  }
  const int row = owned.first + thread_index() / kWarpThreads;
  if (row > owned.last) {
    return;
  }
  const int head = kv_head * p.group + row % p.group;
  reduce_row_by_warp<T, DV>(
      out_row<T, DV>(p, b, seq, row, head),
      b.partials + prefill_partial(p, seq, splits, row, kv_head, 0) * prefill_state_floats(DV),
      splits.count,
      has_sinks ? b.sinks[head * p.sinks_stride] : 0.0f);
}

} // namespace pomona
