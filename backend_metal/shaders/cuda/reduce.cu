// Folds the states that `decode` and `prefill` left of rows with several splits. A warp owns a row
// and folds its splits in order; a lane owns every 32nd pair of dimensions.
#include "cuda/prefill_tiles.h"

namespace pomona {

// The outputs of so many splits are on their way while their states are.
constexpr int kReduceAhead = 4;

template <typename T, int DV>
inline void reduce_row(T* out, const float* states, int num_splits, float sink, int lane) {
  constexpr int kPairs = (DV / 2 + kWarpThreads - 1) / kWarpThreads;
  float outputs[kReduceAhead][kPairs][2];
#pragma unroll
  for (int i = 0; i < kReduceAhead; i++) {
#pragma unroll
    for (int pair = 0; pair < kPairs; pair++) {
      const int dim = 2 * (lane + pair * kWarpThreads);
      const bool is_present = i < num_splits && dim < DV;
      const float* from = states + (is_present ? i * partial_floats(DV) + 2 + dim : 0);
      outputs[i][pair][0] = is_present ? from[0] : 0.0f;
      outputs[i][pair][1] = is_present ? from[1] : 0.0f;
    }
  }
  // A lane's own is the split of its number.
  const float* own = states + metal::min(lane, num_splits - 1) * partial_floats(DV);
  const float own_largest = own[0], own_sum = own[1];
  float largest = own_largest;
  for (int i = lane + kWarpThreads; i < num_splits; i += kWarpThreads) {
    largest = metal::max(largest, states[i * partial_floats(DV)]);
  }
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) {
    largest = metal::max(largest, shuffle_xor(largest, mask));
  }
  const float base = exponent_base(largest);
  const float own_weight = rescale(own_largest, base);
  float sum = 0.0f;
  float totals[kPairs][2] = {};
  for (int i = 0; i < num_splits; i++) {
    const bool is_own = i < kWarpThreads;
    const float* state = states + i * partial_floats(DV);
    const float weight = is_own ? shuffle(own_weight, i) : rescale(state[0], base);
    sum += weight * (is_own ? shuffle(own_sum, i) : state[1]);
    if (i < kReduceAhead) {
      continue;
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; pair++) {
      const int dim = 2 * (lane + pair * kWarpThreads);
      if (dim < DV) {
        totals[pair][0] += state[2 + dim] * weight;
        totals[pair][1] += state[3 + dim] * weight;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kReduceAhead; i++) {
    const float weight = i < num_splits ? shuffle(own_weight, i) : 0.0f;
#pragma unroll
    for (int pair = 0; pair < kPairs; pair++) {
      totals[pair][0] += outputs[i][pair][0] * weight;
      totals[pair][1] += outputs[i][pair][1] * weight;
    }
  }
  const float factor = final_factor(largest, sum, sink);
#pragma unroll
  for (int pair = 0; pair < kPairs; pair++) {
    const int dim = 2 * (lane + pair * kWarpThreads);
    if (dim < DV) {
      store_pair(out + dim, totals[pair][0] * factor, totals[pair][1] * factor);
    }
  }
}

template <typename T, int DV>
inline void reduce_head(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    int64_t token,
    int head,
    const float* states,
    int num_splits) {
  float sink = has_sinks ? b.sinks[head * p.sinks_stride] : 0.0f;
  T* out = static_cast<T*>(b.out) + (token * p.num_q_heads + head) * DV;
  reduce_row<T, DV>(out, states, num_splits, sink, thread_index() % kWarpThreads);
}

// Grid: (q heads / kReduceWarps, sequences, 1).
template <typename T, int DV>
inline void decode_reduce(const AttentionParameters& p, const AttentionBuffers& b) {
  Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, block_position().y);
  int head = block_position().x * kReduceWarps + thread_index() / kWarpThreads;
  if (seq.q_len != 1 || head >= p.num_q_heads) {
    return;
  }
  Splits splits =
      row_splits(seq.first_key(0, p.window), seq.last_key(0), p.keys_per_split, p.max_splits);
  // Rows with one split are finished.
  if (splits.count <= 1) {
    return;
  }
  int64_t partial = (int64_t(seq.index) * p.num_q_heads + head) * p.num_splits;
  reduce_head<T, DV>(
      p, b, seq.first_token, head, b.partials + partial * partial_floats(DV), splits.count);
}

// Grid: (tiles of kPrefillReduceRows rows, K/V heads, 1).
template <typename T, int DV>
inline void prefill_reduce(const AttentionParameters& p, const AttentionBuffers& b) {
  int tile = block_position().x, kv_head = block_position().y;
  int index = find_sequence_by_warp(p, b.cu_seqlens_q, tile, kPrefillReduceRows);
  Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
  TileRows owned = tile_rows(p, b.cu_seqlens_q, seq, tile, kPrefillReduceRows);
  Splits splits = prefill_splits(p, seq);
  if (owned.empty() || splits.count <= 1) {
    return;
  }
  for (int row = owned.first + thread_index() / kWarpThreads; row <= owned.last;
       row += kReduceWarps) {
    reduce_head<T, DV>(
        p,
        b,
        seq.first_token + row / p.group,
        kv_head * p.group + row % p.group,
        b.partials + prefill_partial(p, seq, row, kv_head, 0) * partial_floats(DV),
        splits.count);
  }
}

} // namespace pomona
