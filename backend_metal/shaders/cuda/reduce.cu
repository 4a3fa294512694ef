// Folds the states that `decode` and `prefill` left of rows with several splits. Of a decode a block
// owns a row; of a prefill a warp, of which a lane owns every 32nd pair of dimensions.
#include "cuda/fold_splits.h"
#include "cuda/prefill_tiles.h"

namespace pomona {

template <typename T, int DV>
inline void reduce_row(T* out, const float* states, int num_splits, float sink, int lane) {
  float largest = -INFINITY;
  for (int i = lane; i < num_splits; i += kWarpThreads) {
    largest = metal::max(largest, states[i * partial_floats(DV)]);
  }
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) {
    largest = metal::max(largest, shuffle_xor(largest, mask));
  }
  float base = exponent_base(largest);
  float sum = 0.0f;
  for (int i = 0; i < num_splits; i++) {
    const float* state = states + i * partial_floats(DV);
    sum += state[1] * rescale(state[0], base);
  }
  float factor = final_factor(largest, sum, sink);
  for (int dim = 2 * lane; dim < DV; dim += 2 * kWarpThreads) {
    float first = 0.0f, second = 0.0f;
    for (int i = 0; i < num_splits; i++) {
      const float* state = states + i * partial_floats(DV);
      float weight = rescale(state[0], base);
      first += state[2 + dim] * weight;
      second += state[3 + dim] * weight;
    }
    store_pair(out + dim, first * factor, second * factor);
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

// Grid: (q heads, sequences, 1).
template <typename T, int DV>
inline void decode_reduce(const AttentionParameters& p, const AttentionBuffers& b) {
  static_assert(sizeof(ReduceMemory<DV>) == decode_reduce_bytes(DV));
  Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, block_position().y);
  if (seq.q_len != 1) {
    return;
  }
  Splits splits = decode_splits(p, seq);
  // Rows with one split are finished.
  if (splits.count <= 1) {
    return;
  }
  const int head = block_position().x;
  const int64_t row = int64_t(seq.index) * p.num_q_heads + head;
  const float* states = b.partials + row * p.num_splits * partial_floats(DV);
  T* out = static_cast<T*>(b.out) + (seq.first_token * p.num_q_heads + head) * DV;
  const float sink = has_sinks ? b.sinks[head * p.sinks_stride] : 0.0f;
  if (splits.count > kFewSplits) {
    fold_by_block<T, DV>(out, states, splits.count, sink);
    return;
  }
  for (int pair = thread_index(); pair < DV / 2; pair += kReduceWarps * kWarpThreads) {
    fold_few_splits<T, DV>(out, states, splits.count, sink, 2 * pair);
  }
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
