// Folds the states that `decode` left of rows with several splits. A simdgroup owns one row and
// folds its splits in order; a lane owns every 32nd pair of dimensions.
#include <metal_simdgroup>
#include <metal_stdlib>

#include "constants.h"
#include "options.h"
#include "paging.h"
#include "parameters.h"
#include "softmax.h"
#include "splits.h"

// Grid: (q heads / kReduceRows, sequences, 1). Threads: kReduceRows simdgroups.
template <typename T, int DV>
[[kernel]] void reduce(
    constant pomona::AttentionParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device int* seq_lens [[buffer(POMONA_BUFFER_SEQ_LENS)]],
    const device int* cu_seqlens_q [[buffer(POMONA_BUFFER_CU_SEQLENS_Q)]],
    const device float* sinks [[buffer(POMONA_BUFFER_SINKS), function_constant(has_sinks)]],
    device T* out [[buffer(POMONA_BUFFER_OUT)]],
    const device float* partials [[buffer(POMONA_BUFFER_PARTIALS)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using namespace pomona;
  Sequence seq = load_sequence(p, seq_lens, cu_seqlens_q, group_position.y);
  int head = group_position.x * kReduceRows + simdgroup;
  if (seq.q_len != 1 || head >= p.num_q_heads) {
    return;
  }
  Splits splits = row_splits(
      seq.first_key(0, p.window), seq.last_key(0), p.keys_per_split, p.max_splits);
  // Rows with one split are finished.
  if (splits.count <= 1) {
    return;
  }
  const device float* states =
      partials + (int64_t(seq.index) * p.num_q_heads + head) * p.num_splits * partial_floats(DV);

  float largest = -INFINITY;
  for (int i = lane; i < splits.count; i += kSimdWidth) {
    largest = metal::max(largest, states[i * partial_floats(DV)]);
  }
  largest = metal::simd_max(largest);
  float base = exponent_base(largest);
  float sum = 0.0f;
  for (int i = 0; i < splits.count; i++) {
    const device float* state = states + i * partial_floats(DV);
    sum += state[1] * rescale(state[0], base);
  }
  float sink = 0.0f;
  if (has_sinks) {
    sink = sinks[head * p.sinks_stride];
  }
  float factor = final_factor(largest, sum, sink);

  device T* row = out + (int64_t(seq.first_token) * p.num_q_heads + head) * DV;
  for (int dim = 2 * lane; dim < DV; dim += 2 * kSimdWidth) {
    float2 total = 0.0f;
    for (int i = 0; i < splits.count; i++) {
      const device float* state = states + i * partial_floats(DV);
      total += *reinterpret_cast<const device float2*>(state + 2 + dim) * rescale(state[0], base);
    }
    *reinterpret_cast<device metal::vec<T, 2>*>(row + dim) = metal::vec<T, 2>(total * factor);
  }
}
