// Attention of one tile by warpgroups: up to WarpgroupTile's rows of one sequence and K/V head over
// a range of its keys. J. Shah et al., "FlashAttention-3" (2024).
//
// One warpgroup copies keys and values into shared memory, tile after tile, the others multiply: a
// warpgroup owns 64 rows, a warp 16. Scores of a tile are computed while the weights of the one
// before are multiplied with its values, and warpgroups take turns in starting products, so that
// one's softmax runs beside another's products. A pair of barriers for each stage of keys and of
// values says that it is filled and that it is free.
//
// Shared memory (warpgroup_tile.h): queries; stages of keys; stages of values; where rows lie;
// barriers. All but the last two in panels (warpgroup_intrinsics.h).
//
// As in attend.h, tiles start at multiples of their size and a masked key leaves a row's state as it
// was, so a row's result does not depend on the rows that share its tile.
#pragma once

#include "cuda/attend.h"
#include "cuda/warpgroup_intrinsics.h"
#include "cuda/warpgroup_tile.h"

namespace pomona {

struct Barriers {
  Barrier full_keys[kStages];
  Barrier free_keys[kStages];
  Barrier full_values[kStages];
  Barrier free_values[kStages];
};

// The block's shared memory and constants.
template <typename T, int D, int DV>
struct WarpgroupBlock {
  static constexpr WarpgroupTile size = warpgroup_tile(D, DV);
  static constexpr int rows = size.rows;
  static constexpr int keys = size.keys;
  static constexpr int consumers = size.consumers;
  // Wide values take several products, each of whole panels.
  static constexpr int part_columns = DV <= 128 ? DV : (DV % 128 == 0 ? 128 : kPanelColumns);
  static constexpr int value_parts = DV / part_columns;
  static_assert(
      D % 16 == 0 && DV % part_columns == 0 && keys % 64 == 0, "as products and copies go");

  unsigned char* memory = panel_memory();

  unsigned char* queries(int first_row) const {
    return memory + first_row * kPanelRowBytes;
  }
  unsigned char* stage_keys(int stage) const {
    return memory + size.query_bytes + stage * size.key_bytes;
  }
  unsigned char* stage_values(int stage) const {
    return stage_keys(kStages) + stage * size.value_bytes;
  }
  KeyPlace<T>* places(int tile) const {
    return reinterpret_cast<KeyPlace<T>*>(stage_values(kStages)) + tile % 2 * keys;
  }
  Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(stage_values(kStages) + size.places_bytes);
  }
};

// Phases of a stage's barriers follow its tiles.
inline int stage_of(int tile) {
  return tile % kStages;
}
inline int parity_of(int tile) {
  return tile / kStages % 2;
}

// Of a row, or of zeros, the lane's 16 bytes in each panel: eight lanes copy a row.
template <int ROWS, int COLUMNS, typename T>
inline void copy_row(unsigned char* panels, int row, const T* from, int lane) {
  int chunk = lane % 8;
  unsigned char* to = panels + row * kPanelRowBytes + (chunk ^ row % 8) * 16;
#pragma unroll
  for (int column = 0; column < COLUMNS; column += kPanelColumns) {
    if (chunk * 8 < COLUMNS - column) {
      start_copy(to, from ? from + column + chunk * 8 : from, from != nullptr);
    }
    to += ROWS * kPanelRowBytes;
  }
}

// The tiles of keys that a block folds.
struct KeyTiles {
  KeyRange keys;
  int first; // key of the first tile
  int count;
};

inline KeyTiles key_tiles(KeyRange keys, int tile_keys) {
  int first = keys.first / tile_keys * tile_keys;
  int count = keys.last > keys.first ? (keys.last - first + tile_keys - 1) / tile_keys : 0;
  return {keys, first, count};
}

// Copies tiles, each warp its part of a tile's keys, which its lanes look up one tile ahead.
template <typename T, int D, int DV>
inline void copy_tiles(
    const AttentionParameters& p,
    const WarpgroupBlock<T, D, DV>& block,
    const KeyRows<T>& rows,
    Sequence seq,
    KeyTiles tiles) {
  using Block = WarpgroupBlock<T, D, DV>;
  constexpr int warp_keys = Block::keys / 4;
  int lane = thread_index() % kWarpThreads;
  int first_key = thread_index() % kWarpgroupThreads / kWarpThreads * warp_keys;
  Barriers& barriers = block.barriers();
  auto find = [&](int tile) {
    bool has_key = tile < tiles.count && lane < warp_keys;
    KeyRange range = has_key ? tiles.keys : KeyRange{0, 0};
    return find_key(p, rows, seq, range, tiles.first + tile * Block::keys + first_key + lane);
  };
  auto remember = [&](int tile, KeyPlace<T> place) {
    sync_warp();
    if (lane < warp_keys) {
      block.places(tile)[first_key + lane] = place;
    }
    sync_warp();
  };

  remember(0, find(0));
  // Values follow the keys of the next tile, in the order in which they are needed.
  for (int tile = 0; tile <= tiles.count; tile++) {
    KeyPlace<T> next = find(tile + 1);
    if (tile < tiles.count) {
      int stage = stage_of(tile);
      if (tile >= kStages) {
        wait(barriers.free_keys[stage], parity_of(tile - kStages));
      }
      unsigned char* to = block.stage_keys(stage);
      const KeyPlace<T>* from = block.places(tile);
#pragma unroll
      for (int i = 0; i < warp_keys; i += 4) {
        int key = first_key + i + lane / 8;
        copy_row<Block::keys, D>(to, key, from[key].key, lane);
      }
      arrive_after_copies(barriers.full_keys[stage]);
    }
    if (tile > 0) {
      int stage = stage_of(tile - 1);
      if (tile > kStages) {
        wait(barriers.free_values[stage], parity_of(tile - 1 - kStages));
      }
      unsigned char* to = block.stage_values(stage);
      const KeyPlace<T>* from = block.places(tile - 1);
#pragma unroll
      for (int i = 0; i < warp_keys; i += 4) {
        int key = first_key + i + lane / 8;
        copy_row<Block::keys, DV>(to, key, from[key].value, lane);
      }
      arrive_after_copies(barriers.full_values[stage]);
    }
    remember(tile + 1, next);
  }
}

// Turns the scores of a tile into weights, and says what the state so far is to be multiplied by.
// Scores and `largest` are such that weights are powers of two of their difference times `exponent`.
template <int N>
inline void weigh(
    float (&scores)[N][4],
    float exponent,
    float (&largest)[2],
    float (&sum)[2],
    float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float most = largest[r];
#pragma unroll
    for (int j = 0; j < N; j++) {
      most = larger(most, larger(scores[j][2 * r], scores[j][2 * r + 1]));
    }
    most = row_max(most);
    float base = exponent_base(most);
    factor[r] = power_of_two((largest[r] - base) * exponent);
    largest[r] = most;
    float scaled = base * exponent;
    float weights = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) {
        scores[j][e] = power_of_two(scores[j][e] * exponent - scaled);
        weights += scores[j][e];
      }
    }
    sum[r] = sum[r] * factor[r] + weights;
  }
}

// A tile's scores, of which a lane has those of keys from `first_key` on, without the keys that a row
// does not see.
template <int N>
inline void mask(float (&scores)[N][4], int first_key, const KeyRange (&seen)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int first = seen[r].first - first_key, last = seen[r].last - first_key;
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        bool visible = j * 8 + e >= first && j * 8 + e < last;
        scores[j][2 * r + e] = visible ? scores[j][2 * r + e] : -INFINITY;
      }
    }
  }
}

// Weights as the left operand of a product with values.
template <typename T, int N>
inline void pack_weights(unsigned (&packed)[N / 2][4], const float (&weights)[N][4]) {
#pragma unroll
  for (int j = 0; j < N / 2; j++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float(&pair)[4] = weights[2 * j + i / 2];
      packed[j][i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
  }
}

// scores = queries of the warpgroup's rows times the keys of a stage.
template <typename Block, typename T, int D, int N>
inline void start_scores(
    float (&scores)[N][4], unsigned long long queries, unsigned long long keys) {
  start_products();
#pragma unroll
  for (int dim = 0; dim < D; dim += 16) {
    int skipped = dim / kPanelColumns * kPanelRowBytes, column = dim % kPanelColumns * 2;
    Products<T, N * 8>::columns(
        scores,
        advanced(queries, skipped * Block::rows + column),
        advanced(keys, skipped * Block::keys + column),
        dim > 0);
  }
  end_products();
}

// sums += weights times the values of a stage.
template <typename Block, typename T, int C, int K>
inline void start_values(
    float (&sums)[C][4], const unsigned (&weights)[K][4], unsigned long long values) {
  start_products();
#pragma unroll
  for (int k = 0; k < K; k++) {
#pragma unroll
    for (int part = 0; part < Block::value_parts; part++) {
      int column = part * Block::part_columns;
      int place = (column / kPanelColumns * Block::keys + k * 16) * kPanelRowBytes;
      Products<T, Block::part_columns>::rows(
          sums + column / 8, weights[k], advanced(values, place));
    }
  }
  end_products();
}

// Warpgroups that have rows.
inline int active_consumers(TileRows owned) {
  return (owned.last - owned.first) / kWarpgroupRows + 1;
}

// Folds the tiles into the rows `owned`, of which a warpgroup has 64, as `attend` does.
template <typename T, int D, int DV, typename Finish>
inline void fold_tiles(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block,
    Sequence seq,
    int kv_head,
    TileRows owned,
    KeyTiles tiles,
    Finish finish) {
  using Block = WarpgroupBlock<T, D, DV>;
  int consumer = thread_index() / kWarpgroupThreads - 1;
  int index = thread_index() % kWarpgroupThreads, lane = index % kWarpThreads;
  Barriers& barriers = block.barriers();
  int active = active_consumers(owned);
  if (consumer >= active) {
    return;
  }
  // Named barriers; 0 is the block's.
  int turn = 1 + consumer, next_turn = 1 + (consumer + 1) % active;
  int meeting = 1 + Block::consumers + consumer;

  int group_row = consumer * kWarpgroupRows;
  unsigned char* queries = block.queries(group_row);
#pragma unroll 4
  for (int tile_row = index / 8; tile_row < kWarpgroupRows; tile_row += kWarpgroupThreads / 8) {
    int row = owned.first + group_row + tile_row;
    const T* query = nullptr;
    if (row <= owned.last) {
      int64_t token = seq.first_token + row / p.group;
      int head = kv_head * p.group + row % p.group;
      query = static_cast<const T*>(b.q) + token * p.q.token + head * p.q.head;
    }
    copy_row<Block::rows, D>(queries, tile_row, query, lane);
  }
  end_copies();

  int warp_row = owned.first + group_row + index / kWarpThreads * kTileRows;
  TileRows warp_rows{warp_row, metal::min(warp_row + kTileRows - 1, owned.last)};
  int lane_rows[2];
  KeyRange seen[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    lane_rows[r] = warp_row + lane / 4 + r * 8;
    bool has_row = lane_rows[r] <= owned.last;
    seen[r] = has_row ? keys_of_some(p, seq, TileRows{lane_rows[r], lane_rows[r]}) : KeyRange{0, 0};
    seen[r].first = metal::max(seen[r].first, tiles.keys.first);
    seen[r].last = metal::min(seen[r].last, tiles.keys.last);
  }
  // Keys that need no mask. What a missing row sees is nobody's concern.
  KeyRange common = keys_of_all(p, seq, warp_rows);
  common.first = metal::max(common.first, tiles.keys.first);
  common.last = metal::min(common.last, tiles.keys.last);

  LaneState<DV> state;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state.largest[r] = -INFINITY;
    state.sum[r] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < DV / 8; i++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      state.sums[i][e] = 0.0f;
    }
  }
  float scores[Block::keys / 8][4];
  unsigned weights[Block::keys / 16][4];
  constexpr float log2_of_e = 1.44269504f;
  float exponent = has_softcap ? log2_of_e : p.scale * log2_of_e;
  float cap_exponent = has_softcap ? 2.0f * log2_of_e * p.scale / p.softcap : 0.0f;
  unsigned long long query_panel = panel(queries, 0);

  auto release = [&](Barrier& barrier) {
    if (lane == 0) {
      arrive(barrier);
    }
  };
  auto await_keys = [&](int tile) {
    if (tile < tiles.count) {
      wait(barriers.full_keys[stage_of(tile)], parity_of(tile));
      fence_products();
    }
  };
  auto score = [&](int tile) {
    start_scores<Block, T, D>(
        scores, query_panel, panel(block.stage_keys(stage_of(tile)), 0));
  };
  auto weigh_tile = [&](int tile) {
    int first_key = tiles.first + tile * Block::keys;
    // tanh(x) = 1 - 2 / (exp(2 x) + 1): as exact as weights of 2 bytes need it, in few registers.
    if (has_softcap) {
#pragma unroll
      for (int j = 0; j < Block::keys / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float power = power_of_two(scores[j][e] * cap_exponent);
          scores[j][e] = p.softcap - 2.0f * p.softcap * reciprocal(power + 1.0f);
        }
      }
    }
    // All lanes of a warp agree on this.
    if (first_key < common.first || first_key + Block::keys > common.last) {
      mask(scores, first_key + lane % 4 * 2, seen);
    }
    weigh(scores, exponent, state.largest, state.sum, factor);
  };
  auto multiply_values = [&](int tile) {
    start_values<Block, T>(
        state.sums,
        weights,
        panel(block.stage_values(stage_of(tile)), Block::keys * kPanelRowBytes));
  };

  wait_for_copies<0>();
  fence_products();
  sync_some(meeting, kWarpgroupThreads);
  if (tiles.count > 0) {
    await_keys(0);
    if (consumer == active - 1) {
      pass_by(next_turn, 2 * kWarpgroupThreads);
    }
    score(0);
    wait_for_products<0>();
    hold(scores);
    release(barriers.free_keys[0]);
    weigh_tile(0);
    await_keys(1);
    pack_weights<T>(weights, scores);
    for (int tile = 1; tile < tiles.count; tile++) {
      sync_some(turn, 2 * kWarpgroupThreads);
      score(tile);
      wait(barriers.full_values[stage_of(tile - 1)], parity_of(tile - 1));
      fence_products();
      multiply_values(tile - 1);
      pass_by(next_turn, 2 * kWarpgroupThreads);
      wait_for_products<1>();
      hold(scores);
      release(barriers.free_keys[stage_of(tile)]);
      weigh_tile(tile);
      // All of this beside the products with values: no compiler moves it behind the loop of a wait.
      hold(scores);
      await_keys(tile + 1);
      wait_for_products<0>();
      hold(state.sums);
      release(barriers.free_values[stage_of(tile - 1)]);
      // Most tiles of a long sequence change nobody's largest score.
      if (vote(factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < DV / 8; i++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            state.sums[i][e] *= factor[e / 2];
          }
        }
      }
      pack_weights<T>(weights, scores);
    }
    int last = tiles.count - 1;
    wait(barriers.full_values[stage_of(last)], parity_of(last));
    fence_products();
    multiply_values(last);
    wait_for_products<0>();
    hold(state.sums);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = row_sum(state.sum[r]);
    if (!has_softcap) {
      state.largest[r] *= p.scale;
    }
    if (lane_rows[r] <= owned.last) {
      finish(lane_rows[r], r, state, sum, 0, lane);
    }
  }
}

// Folds keys [keys.first, keys.last) into the rows `owned`; `finish` is that of `attend`.
template <typename T, int D, int DV, typename Finish>
inline void attend_by_warpgroups(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    Sequence seq,
    int kv_head,
    TileRows owned,
    KeyRange keys,
    Finish finish) {
  using Block = WarpgroupBlock<T, D, DV>;
  Block block;
  if (thread_index() == 0) {
    Barriers& barriers = block.barriers();
    for (int stage = 0; stage < kStages; stage++) {
      init_barrier(barriers.full_keys[stage], kWarpgroupThreads);
      init_barrier(barriers.full_values[stage], kWarpgroupThreads);
      // A warp that multiplies arrives once.
      init_barrier(barriers.free_keys[stage], active_consumers(owned) * 4);
      init_barrier(barriers.free_values[stage], active_consumers(owned) * 4);
    }
  }
  sync_block();
  KeyTiles tiles = key_tiles(keys, Block::keys);
  if (thread_index() < kWarpgroupThreads) {
    give_registers<Block::size.producer_registers>();
    KeyRows<T> rows = key_rows(
        p,
        static_cast<const T*>(b.k),
        static_cast<const T*>(b.v),
        static_cast<const T*>(b.k_cache),
        static_cast<const T*>(b.v_cache),
        b.slot_mapping,
        b.block_tables,
        seq.index,
        kv_head);
    copy_tiles<T, D, DV>(p, block, rows, seq, tiles);
  } else {
    take_registers<Block::size.consumer_registers>();
    fold_tiles<T, D, DV>(p, b, block, seq, kv_head, owned, tiles, finish);
  }
}

} // namespace pomona
