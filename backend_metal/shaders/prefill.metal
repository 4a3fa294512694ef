// Attention of sequences with several query tokens: flash attention on tiles of rows.
//
// A threadgroup owns a tile: `kRows` consecutive rows (query tokens times query heads of a group)
// of one sequence and one K/V head, so that a key is loaded once for all heads that share it. It
// walks the keys that any of its rows sees, `kKeys` at a time, through threadgroup memory.
//
// A simdgroup owns 8 rows and a column group: all columns of their queries and outputs, or of wide
// heads a half or a quarter, which stay in registers (up to 2 x 32 or 36 floats a lane). The column
// groups of a row add up their shares of its scores through threadgroup memory, in one order, and
// each then does the row's softmax for itself, on the same bits.
//
// Threadgroup memory: kKeys rows of K, replaced by the same tokens' V; the shares of the scores of
// wide heads. Rows are padded by 16 bytes, which spreads what the lanes of a simdgroup read at once
// evenly over the banks.
//
// Key tiles start at multiples of kKeys, and masked keys leave a row's state as it was, bit for
// bit: a row's result does not depend on the rows that share its tile.
template <typename T, int HEAD_DIM, int HEAD_DIM_V>
struct PrefillTile {
  static constant constexpr const int kColumnGroups = prefill_column_groups(HEAD_DIM);
  static constant constexpr const int kRowGroups = prefill_rows(HEAD_DIM) / 8;
  static constant constexpr const int kRows = prefill_rows(HEAD_DIM);
  static constant constexpr const int kKeys = prefill_keys(HEAD_DIM, sizeof(T));
  static constant constexpr const int kThreads = prefill_threads(HEAD_DIM);
  static constant constexpr const int kStride = prefill_stride(HEAD_DIM, sizeof(T));
  static constant constexpr const int kColumns = HEAD_DIM / kColumnGroups;
  static constant constexpr const int kColumnsV = HEAD_DIM_V / kColumnGroups;
  static constant constexpr const int kShares = kColumnGroups > 1 ? kColumnGroups * kRows * kKeys : 1;
};

// Which rows of which sequence a threadgroup owns.
struct RowRange {
  int seq;
  int first_token; // of the sequence, in q
  int q_len;
  int context; // tokens of the sequence before its first query; below 0 when there are fewer keys
  int first_row, num_rows;
};

// Sequence s starts at tile q_start(s) * group / rows + s: far enough for every partial tile before
// it, and known without a sum over sequences. Tiles that belong to nobody have no rows.
METAL_FUNC RowRange find_rows(
    int tile, int rows, int group, int num_seqs, const device int* seq_lens, const device int* cu_seqlens_q) {
  int seq = 0;
  int end = num_seqs;
  while (end - seq > 1) {
    const int middle = (seq + end) / 2;
    const bool before = cu_seqlens_q[middle] * group / rows + middle <= tile;
    seq = before ? middle : seq;
    end = before ? end : middle;
  }
  const int first_token = cu_seqlens_q[seq];
  const int q_len = cu_seqlens_q[seq + 1] - first_token;
  const int first_row = (tile - first_token * group / rows - seq) * rows;
  const int num_rows = q_len > 1 ? min(q_len * group - first_row, rows) : 0;
  return {seq, first_token, q_len, seq_lens[seq] - q_len, first_row, num_rows};
}

// Where a token's key and value lie.
struct TokenPlace {
  bool present;
  bool own; // of this step
  int token; // own: row of k and v
  int slot; // else: block * BLOCK_SIZE + offset
};

template <int BLOCK_SIZE>
METAL_FUNC TokenPlace locate(
    int position, bool present, thread const RowRange& tile, const device int* slot_mapping,
    const device int* block_table) {
  TokenPlace place = {present, false, 0, 0};
  if (!present) {
    return place;
  }
  place.token = tile.first_token + position - tile.context;
  place.own = has_own_tokens && position >= tile.context && slot_mapping[place.token] >= 0;
  if (!place.own) {
    place.slot = block_table[position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
  }
  return place;
}

// Copies one token's row into threadgroup memory, zeros for a token that is not there: a masked
// key's weight is 0, and 0 times whatever lies in memory must be 0. `part` of `parts` lanes.
template <typename T, int COLUMNS>
METAL_FUNC void stage_row(threadgroup T* to, const device T* from, bool present, int part, int parts) {
  constexpr int width = 16 / sizeof(T);
  for (int column = part * width; column < COLUMNS; column += parts * width) {
    threadgroup uint4* chunk = reinterpret_cast<threadgroup uint4*>(to + column);
    if (!present) {
      *chunk = uint4(0);
    } else if (aligned_rows) {
      *chunk = *reinterpret_cast<const device uint4*>(from + column);
    } else {
      for (int i = 0; i < width; i++) {
        to[column + i] = from[column + i];
      }
    }
  }
}

template <typename T, int HEAD_DIM, int HEAD_DIM_V, int BLOCK_SIZE>
[[kernel, max_total_threads_per_threadgroup(prefill_threads(HEAD_DIM))]] void prefill(
    const device T* q [[buffer(0)]],
    const device T* k [[buffer(1)]],
    const device T* v [[buffer(2)]],
    const device T* k_cache [[buffer(3)]],
    const device T* v_cache [[buffer(4)]],
    const device int* slot_mapping [[buffer(5)]],
    const device int* block_tables [[buffer(6)]],
    const device int* seq_lens [[buffer(7)]],
    const device int* cu_seqlens_q [[buffer(8)]],
    const device float* sinks [[buffer(9)]],
    device T* out [[buffer(10)]],
    constant AttentionParams& p [[buffer(12)]],
    uint3 position [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  using Tile = PrefillTile<T, HEAD_DIM, HEAD_DIM_V>;
  threadgroup uint4 staged_memory[Tile::kKeys * Tile::kStride * sizeof(T) / 16];
  threadgroup float shares[Tile::kShares];
  threadgroup T* staged = reinterpret_cast<threadgroup T*>(staged_memory);

  const int group = p.num_q_heads / p.num_kv_heads;
  const int kv_head = position.y;
  const RowRange tile = find_rows(position.x, Tile::kRows, group, p.num_seqs, seq_lens, cu_seqlens_q);
  if (tile.num_rows <= 0) {
    return;
  }
  const device int* block_table = block_tables + long(tile.seq) * p.max_blocks_per_seq;

  // The keys of the tile's first row to those of its last, and what the rows in between share.
  const int first_position = tile.context + tile.first_row / group;
  const int last_position = tile.context + (tile.first_row + tile.num_rows - 1) / group;
  const int begin = has_window ? max(first_position - p.window + 1, 0) : 0;
  const int end = last_position + 1;
  const int shared_begin = has_window ? last_position - p.window + 1 : 0;
  const int shared_end = first_position + 1;

  // The lane's row.
  const int column_group = simdgroup % Tile::kColumnGroups;
  const int row_in_tile = simdgroup / Tile::kColumnGroups * 8 + lane_row(lane);
  const bool has_row = row_in_tile < tile.num_rows;
  const int row = tile.first_row + min(row_in_tile, tile.num_rows - 1);
  const int token = tile.first_token + row / group;
  const int head = kv_head * group + row % group;
  const int row_end = tile.context + row / group + 1;
  const int row_begin = has_window ? row_end - p.window : 0;

  Matrix queries[Tile::kColumns / 8];
  Matrix sums[Tile::kColumnsV / 8];
  Matrix scores[Tile::kKeys / 8];
  load_queries<T, Tile::kColumns>(
      queries,
      q + token * p.q_token + head * p.q_head + column_group * Tile::kColumns,
      has_row,
      has_softcap ? p.scale / p.softcap : p.scale * M_LOG2E_F,
      lane);
#pragma clang loop unroll(full)
  for (int i = 0; i < Tile::kColumnsV / 8; i++) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  float maximum = -INFINITY;
  float denominator = 0.0f; // this lane's share

  // Each thread copies its part of one row of K, and of the same token's V.
  constexpr int parts = Tile::kThreads / Tile::kKeys;
  const int staged_key = thread_index / parts;
  const int part = thread_index % parts;
  threadgroup T* staged_row = staged + staged_key * Tile::kStride;

  for (int first_key = begin / Tile::kKeys * Tile::kKeys; first_key < end; first_key += Tile::kKeys) {
    const int key = first_key + staged_key;
    const TokenPlace place =
        locate<BLOCK_SIZE>(key, key >= begin && key < end, tile, slot_mapping, block_table);
    const device T* key_row = place.own
        ? k + place.token * p.k_token + kv_head * p.k_head
        : k_cache + place.slot / BLOCK_SIZE * p.kc_block + place.slot % BLOCK_SIZE * p.kc_slot + kv_head * p.kc_head;
    stage_row<T, HEAD_DIM>(staged_row, key_row, place.present, part, parts);
    threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma clang loop unroll(full)
    for (int j = 0; j < Tile::kKeys / 8; j++) {
      scores[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    add_scores<T, Tile::kColumns, Tile::kKeys, Tile::kStride>(
        scores, queries, staged + column_group * Tile::kColumns, lane);
    if (Tile::kColumnGroups > 1) {
      store_share<Tile::kKeys>(scores, shares + (column_group * Tile::kRows + row_in_tile) * Tile::kKeys, lane);
    }
    if (!values_in_keys) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const device T* value_row = place.own
          ? v + place.token * p.v_token + kv_head * p.v_head
          : v_cache + place.slot / BLOCK_SIZE * p.vc_block + place.slot % BLOCK_SIZE * p.vc_slot + kv_head * p.vc_head;
      stage_row<T, HEAD_DIM_V>(staged_row, value_row, place.present, part, parts);
    }
    // V, or at least the shares of the scores, are there.
    if (!values_in_keys || Tile::kColumnGroups > 1) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (Tile::kColumnGroups > 1) {
      add_shares<Tile::kColumnGroups, Tile::kRows, Tile::kKeys>(scores, shares + row_in_tile * Tile::kKeys, lane);
    }

    const bool masked = first_key < shared_begin || first_key + Tile::kKeys > shared_end;
    float tile_maximum = -INFINITY;
#pragma clang loop unroll(full)
    for (int j = 0; j < Tile::kKeys / 8; j++) {
#pragma clang loop unroll(full)
      for (int e = 0; e < 2; e++) {
        float score = scores[j].thread_elements()[e];
        if (has_softcap) {
          score = p.softcap * M_LOG2E_F * precise::tanh(score);
        }
        if (masked) {
          const int scored = first_key + 8 * j + lane_column(lane) + e;
          score = scored >= row_begin && scored < row_end ? score : -INFINITY;
        }
        tile_maximum = max(tile_maximum, score);
        scores[j].thread_elements()[e] = score;
      }
    }
    const float new_maximum = max(maximum, row_max(tile_maximum));
    // A row that has seen no key yet: its scores are all -infinity, and become weights of 0.
    const float reference = new_maximum == -INFINITY ? 0.0f : new_maximum;
    const float decay = fast::exp2(maximum - reference);
    maximum = new_maximum;
    denominator *= decay;
#pragma clang loop unroll(full)
    for (int j = 0; j < Tile::kKeys / 8; j++) {
#pragma clang loop unroll(full)
      for (int e = 0; e < 2; e++) {
        const float weight = fast::exp2(scores[j].thread_elements()[e] - reference);
        denominator += weight;
        scores[j].thread_elements()[e] = weight;
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < Tile::kColumnsV / 8; i++) {
      sums[i].thread_elements()[0] *= decay;
      sums[i].thread_elements()[1] *= decay;
    }
    add_values<T, Tile::kColumnsV, Tile::kKeys, Tile::kStride>(
        sums, scores, staged + column_group * Tile::kColumnsV, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  denominator = row_sum(denominator);
  if (has_sinks) {
    const float sink = sinks[head] * M_LOG2E_F;
    denominator = maximum == -INFINITY ? 0.0f : denominator + fast::exp2(sink - maximum);
  }
  const float norm = denominator > 0.0f ? 1.0f / denominator : 0.0f;
  if (!has_row) {
    return;
  }
  device T* out_row = out + (long(token) * p.num_q_heads + head) * HEAD_DIM_V +
      column_group * Tile::kColumnsV + 2 * lane_column(lane);
#pragma clang loop unroll(full)
  for (int i = 0; i < Tile::kColumnsV / 8; i += 2) {
    const float4 value = float4(
        sums[i].thread_elements()[0],
        sums[i].thread_elements()[1],
        sums[i + 1].thread_elements()[0],
        sums[i + 1].thread_elements()[1]);
    *reinterpret_cast<device vec<T, 4>*>(out_row + 8 * i) = vec<T, 4>(value * norm);
  }
}
