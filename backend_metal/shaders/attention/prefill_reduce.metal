// Folds the states that `prefill` left of rows with several splits: the tiles and rows of prefill,
// a simdgroup a row.
#include <metal_simdgroup>
#include <metal_stdlib>

#include "../common/bindings.h"
#include "../common/constants.h"
#include "../common/options.h"
#include "paging.h"
#include "../common/parameters.h"
#include "partials.h"
#include "prefill_splits.h"
#include "prefill_tile.h"

// Grid: (tiles, K/V heads, 1). Threads: kPrefillReduceThreads.
template <typename T, int D, int DV>
[[kernel]] void prefill_reduce(
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
  constexpr int tile_size = prefill_tile(D, DV, sizeof(T)).rows;
  int tile = group_position.x, kv_head = group_position.y;
  int index = find_sequence(p, cu_seqlens_q, tile, tile_size);
  Sequence seq = load_sequence(p, seq_lens, cu_seqlens_q, index);
  TileRows rows = tile_rows(p, cu_seqlens_q, seq, tile, tile_size);
  Splits splits = prefill_splits(p, seq);
  // Rows of one split are finished.
  if (rows.empty() || splits.count <= 1) {
    return;
  }
  constexpr int num_simdgroups = kPrefillReduceThreads / kSimdWidth;
  for (int row = rows.first + simdgroup; row <= rows.last; row += num_simdgroups) {
    int64_t token = seq.first_token + row / p.group;
    int head = kv_head * p.group + row % p.group;
    float sink = 0.0f;
    if (has_sinks) {
      sink = sinks[head * p.sinks_stride];
    }
    reduce_row<T, DV>(
        out + (token * p.num_q_heads + head) * DV,
        partials + prefill_partial(p, seq, splits, row, kv_head, 0) * partial_floats(DV),
        splits.count,
        sink,
        lane);
  }
}
