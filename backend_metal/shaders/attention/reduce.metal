// Folds the states that `decode` left of rows with several splits. A simdgroup owns one row and
// folds its splits in order.
#include <metal_simdgroup>
#include <metal_stdlib>

#include "../common/constants.h"
#include "../common/options.h"
#include "paging.h"
#include "../common/parameters.h"
#include "partials.h"
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

  float sink = 0.0f;
  if (has_sinks) {
    sink = sinks[head * p.sinks_stride];
  }
  device T* row = out + (int64_t(seq.first_token) * p.num_q_heads + head) * DV;
  reduce_row<T, DV>(row, states, splits.count, sink, lane);
}
