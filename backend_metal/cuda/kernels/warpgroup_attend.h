// Attention by warpgroups, one piece of work (warpgroup_work.h) after another: up to WarpgroupTile's rows
// of one sequence and K/V head over a range of its keys. J. Shah et al., "FlashAttention-3" (2024).
//
// A warpgroup multiplies 64 rows, a warp 16, and one more warpgroup prepares (warpgroup_copies.h). Scores of a
// tile are computed while the weights of the one before are multiplied with its values, and warpgroups
// take turns in starting products, so that one's softmax runs beside another's products.
//
// As in attend.h, tiles start at multiples of their size and a masked key leaves a row's state as it
// was, so a row's result does not depend on the rows that share its tile.
#pragma once

#include "warpgroup_copies.h"

namespace pomona {

// Turns the scores of a tile's first COUNT eights of keys into weights, and says what the state so far is to be
// multiplied by. Scores and `largest` are such that weights are powers of two of their difference times `exponent`.
template <int COUNT, int N>
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
    for (int j = 0; j < COUNT; j++) {
      most = larger(most, larger(scores[j][2 * r], scores[j][2 * r + 1]));
    }
    most = row_max(most);
    float base = exponent_base(most);
    factor[r] = power_of_two((largest[r] - base) * exponent);
    largest[r] = most;
    float scaled = base * exponent;
    float weights = 0.0f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) {
        scores[j][e] = power_of_two(scores[j][e] * exponent - scaled);
        weights += scores[j][e];
      }
    }
    sum[r] = sum[r] * factor[r] + weights;
  }
}

// Masks as many of a tile's scores, of which a lane has those of keys from `first_key` on, where a row does not see
// the key.
template <int COUNT, int N>
inline void mask(float (&scores)[N][4], int first_key, const KeyRange (&seen)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int first = seen[r].first - first_key, last = seen[r].last - first_key;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
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

// Writes a finished row, or the state that its split leaves. Lanes that share a row give each other what they
// have of 32 columns, so that each of them stores 16 bytes. Every lane of a warp has to come here.
template <typename T, int DV>
inline void finish_wide_row(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const TileWork& work,
    int row,
    int r,
    const LaneState<DV>& state,
    RowEnd<T> end,
    int lane) {
  bool has_row = row <= work.owned.last;
  if (has_partials && work.splits.count > 1) {
    if (has_row) {
      const PartialRow partial = partial_of<DV>(p, b, work, row);
      if (lane % 4 == 0) {
        partial.bounds[0] = state.largest[r];
        partial.bounds[1] = state.sum[r];
      }
      write_outputs(state, r, partial.outputs, lane);
    }
    return;
  }
  T* out = end.out;
  float factor = end.factor;
  bool is_odd = lane % 2 != 0, is_upper = lane % 4 >= 2;
#pragma unroll
  for (int i = 0; i < DV / 8; i += 4) {
    unsigned words[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float* pair = state.sums[metal::min(i + j, DV / 8 - 1)] + 2 * r;
      words[j] = pack<T>(pair[0] * factor, pair[1] * factor);
    }
    if (i + 4 > DV / 8) {
#pragma unroll
      for (int j = 0; j < DV / 8 - i; j++) {
        if (has_row) {
          *reinterpret_cast<unsigned*>(out + (i + j) * 8 + lane % 4 * 2) = words[j];
        }
      }
      break;
    }
    // words[j] of lane l becomes words[l] of lane j.
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      unsigned other = shuffle(is_odd ? words[j] : words[j + 1], lane ^ 1);
      (is_odd ? words[j] : words[j + 1]) = other;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
      unsigned other = shuffle(is_upper ? words[j] : words[j + 2], lane ^ 2);
      (is_upper ? words[j] : words[j + 2]) = other;
    }
    if (has_row) {
      store_16_bytes(out + (i + lane % 4) * 8, words);
    }
  }
}

// What a warpgroup without rows does of a piece of work.
template <typename T, int D, int DV>
inline void pass_tiles(
    const WarpgroupBlock<T, D, DV>& block, int work_index, KeyTiles tiles, int before, int lane) {
  Barriers& barriers = block.barriers();
  auto release = [&](Barrier& barrier) {
    sync_warp();
    if (lane == 0) {
      arrive(barrier);
    }
  };
  release(barriers.free_queries[work_index % WarpgroupBlock<T, D, DV>::size.query_buffers]);
  for (int tile = before; tile < before + tiles.count; tile++) {
    int stage = stage_of(tile), parity = parity_of(tile);
    wait(barriers.full_keys[stage], parity);
    release(barriers.free_keys[stage]);
    wait(barriers.full_values[stage], parity);
    release(barriers.free_values[stage]);
  }
}

// Folds the tiles of a piece of work into its rows, of which a warpgroup has 64. `before`: tiles of the
// work before.
template <typename T, int D, int DV>
inline void fold_tiles(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block,
    const TileWork& work,
    int work_index,
    KeyTiles tiles,
    int before) {
  using Block = WarpgroupBlock<T, D, DV>;
  int consumer = warp_index() / (kWarpgroupThreads / kWarpThreads) - 1;
  int index = thread_index() % kWarpgroupThreads, lane = lane_index();
  Barriers& barriers = block.barriers();
  Sequence seq = work.seq;
  TileRows owned = work.owned;
  int active = active_consumers(owned);
  if (consumer >= active) {
    pass_tiles(block, work_index, tiles, before, lane);
    return;
  }
  int turn = turn_barrier(consumer), next_turn = turn_barrier((consumer + 1) % active);
  int group_row = consumer * kWarpgroupRows;

  int warp_row = owned.first + group_row + index / kWarpThreads * kTileRows;
  TileRows warp_rows{warp_row, metal::min(warp_row + kTileRows - 1, owned.last)};
  int lane_rows[2];
  KeyRange seen[2]{}, common{}; // common: keys that need no mask
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
  constexpr int half_tile = Block::keys / 16; // in eights of keys
  constexpr float log2_of_e = 1.44269504f;
  float exponent = has_softcap ? log2_of_e : p.scale * log2_of_e;
  float cap_exponent = has_softcap ? 2.0f * log2_of_e * p.scale / p.softcap : 0.0f;
  unsigned long long query_panel = panel(block.queries(work_index, group_row), 0);

  constexpr int buffers = Block::size.query_buffers;
  auto release = [&](Barrier& barrier) {
    if (lane == 0) {
      arrive(barrier);
    }
  };
  auto release_queries = [&] {
    release(barriers.free_queries[work_index % buffers]);
  };
  auto await_keys = [&](int tile) {
    if (tile < tiles.count) {
      wait(barriers.full_keys[stage_of(before + tile)], parity_of(before + tile));
      fence_asynchronous();
    }
  };
  auto await_values = [&](int tile) {
    wait(barriers.full_values[stage_of(before + tile)], parity_of(before + tile));
    fence_asynchronous();
  };
  auto score = [&](int tile) {
    start_scores<Block, T, D>(
        scores, query_panel, panel(block.stage_keys(stage_of(before + tile)), 0));
  };
  // Once the latest scores are there.
  auto release_keys = [&](int tile) {
    release(barriers.free_keys[stage_of(before + tile)]);
    if (tile == tiles.count - 1) {
      release_queries();
    }
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
    // All lanes of a warp agree on these. Every other piece of a short prompt sees no more than half of its last tile.
    if (first_key + Block::keys / 2 >= tiles.keys.last) {
      mask<half_tile>(scores, first_key + lane % 4 * 2, seen);
      weigh<half_tile>(scores, exponent, state.largest, state.sum, factor);
#pragma unroll
      for (int j = half_tile; j < 2 * half_tile; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          scores[j][e] = 0.0f;
        }
      }
      return;
    }
    if (first_key < common.first || first_key + Block::keys > common.last) {
      mask<2 * half_tile>(scores, first_key + lane % 4 * 2, seen);
    }
    weigh<2 * half_tile>(scores, exponent, state.largest, state.sum, factor);
  };
  auto multiply_values = [&](int tile) {
    start_values<Block, T>(
        state.sums,
        weights,
        panel(block.stage_values(stage_of(before + tile)), Block::keys * kPanelRowBytes));
  };

  auto find_rows = [&] {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      lane_rows[r] = warp_row + lane / 4 + r * 8;
      bool has_row = lane_rows[r] <= owned.last;
      seen[r] =
          has_row ? keys_of_some(p, seq, TileRows{lane_rows[r], lane_rows[r]}) : KeyRange{0, 0};
      seen[r].first = metal::max(seen[r].first, tiles.keys.first);
      seen[r].last = metal::min(seen[r].last, tiles.keys.last);
    }
    // What a missing row sees is nobody's concern.
    common = keys_of_all(p, seq, warp_rows);
    common.first = metal::max(common.first, tiles.keys.first);
    common.last = metal::min(common.last, tiles.keys.last);
  };
  RowEnd<T> ends[2];
  auto end_rows = [&] {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      state.sum[r] = row_sum(state.sum[r]);
      if (!has_softcap) {
        state.largest[r] *= p.scale;
      }
      const PartialRow none{nullptr, nullptr};
      ends[r] = end_of_row<T, DV>(
          p, b, seq, work.kv_head, lane_rows[r], state.largest[r], state.sum[r], none);
    }
  };

  if (tiles.count == 0) {
    find_rows();
    release_queries();
    end_rows();
  } else {
    await_keys(0);
    score(0);
    // Beside the products, as what ends the rows is beside the last ones.
    find_rows();
    wait_for_products<0>();
    hold(scores);
    release_keys(0);
    weigh_tile(0);
    await_keys(1);
    pack_weights<T>(weights, scores);
    for (int tile = 1; tile < tiles.count; tile++) {
      sync_some(turn, 2 * kWarpgroupThreads);
      score(tile);
      await_values(tile - 1);
      multiply_values(tile - 1);
      pass_by(next_turn, 2 * kWarpgroupThreads);
      wait_for_products<1>();
      hold(scores);
      release_keys(tile);
      weigh_tile(tile);
      // All of this beside the products with values: no compiler moves it behind the loop of a wait.
      hold(scores);
      await_keys(tile + 1);
      wait_for_products<0>();
      hold(state.sums);
      release(barriers.free_values[stage_of(before + tile - 1)]);
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
    await_values(last);
    multiply_values(last);
    end_rows();
    wait_for_products<0>();
    hold(state.sums);
    release(barriers.free_values[stage_of(before + last)]);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    finish_wide_row<T, DV>(p, b, work, lane_rows[r], r, state, ends[r], lane);
  }
}

// What a warpgroup does that multiplies, work after work.
template <typename T, int D, int DV>
inline void fold_work(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block) {
  using Block = WarpgroupBlock<T, D, DV>;
  constexpr int buffers = Block::size.query_buffers;
  Barriers& barriers = block.barriers();
  // The first one's turn; behind the last turns of a piece of work it is the first one's again.
  if (warp_index() / (kWarpgroupThreads / kWarpThreads) == Block::consumers) {
    pass_by(turn_barrier(0), 2 * kWarpgroupThreads);
  }
  int before = 0;
  for (int index = 0;; index++) {
    const TileWork work = await_work(block, index);
    if (work.owned.empty()) {
      return;
    }
    KeyTiles tiles = key_tiles(work.keys, Block::keys);
    wait(barriers.full_queries[index % buffers], index / buffers % 2);
    fence_asynchronous();
    fold_tiles<T, D, DV>(p, b, block, work, index, tiles, before);
    before += tiles.count;
  }
}

template <typename T, int D, int DV>
inline void attend_by_warpgroups(const AttentionParameters& p, const AttentionBuffers& b) {
  using Block = WarpgroupBlock<T, D, DV>;
  Block block;
  if (thread_index() == 0) {
    Barriers& barriers = block.barriers();
    constexpr int working_warps = Block::copying_warps + Block::multiplying_warps;
    for (int slot = 0; slot < kWorkSlots; slot++) {
      init_barrier(barriers.full_work[slot], 1);
      init_barrier(barriers.free_work[slot], working_warps * kWarpThreads);
    }
    init_barrier(barriers.wanted_work, 1);
    // A warp that multiplies arrives once where something is free.
    for (int buffer = 0; buffer < Block::size.query_buffers; buffer++) {
      constexpr int query_warps = Block::size.finder_has_registers ? 1 : Block::copying_warps;
      init_barrier(barriers.full_queries[buffer], query_warps * kWarpThreads);
      init_barrier(barriers.free_queries[buffer], Block::multiplying_warps);
    }
    for (int stage = 0; stage < kStages; stage++) {
      init_barrier(barriers.full_keys[stage], Block::copying_warps * kWarpThreads);
      init_barrier(barriers.full_values[stage], Block::copying_warps * kWarpThreads);
      init_barrier(barriers.free_keys[stage], Block::multiplying_warps);
      init_barrier(barriers.free_values[stage], Block::multiplying_warps);
    }
    for (int stage = 0; stage < kWriteStages; stage++) {
      init_barrier(barriers.full_writes[stage], kWarpThreads);
    }
    // Copies of rows arrive there by themselves.
    fence_asynchronous();
  }
  sync_block();
  int warp = warp_index();
  if (warp < kWarpgroupThreads / kWarpThreads) {
    give_registers<Block::size.producer_registers>();
    prepare_work(p, b, block, warp);
  } else {
    take_registers<Block::size.consumer_registers>();
    fold_work<T, D, DV>(p, b, block);
  }
}

} // namespace pomona
