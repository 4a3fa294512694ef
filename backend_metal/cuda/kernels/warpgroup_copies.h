// What is done ahead of those that multiply (warpgroup_attend.h), by warps of a warpgroup of its own: one finds
// the next piece of work and copies its queries into shared memory, two copy its keys and values, tile after tile,
// and one writes the step's keys and values to their slots. Of narrow heads, whose warps have few registers, the two
// copy queries, too. All are ahead by pieces of work.
#pragma once

#include "warpgroup_block.h"
#include "warpgroup_writes.h"

namespace pomona {

// Where a lane's 16 bytes of a row lie in a panel, when eight lanes copy one and a warp four: `row` is a
// multiple of 4.
inline int place_in_panel(int row, int lane) {
  int chunk = lane % 8, own_row = lane / 8 + row % 8;
  return (row + lane / 8) * kPanelRowBytes + (chunk ^ own_row) * 16;
}

// Of a row, or of zeros, the lane's 16 bytes in each panel. `to`: of the first one.
template <int ROWS, int COLUMNS, typename T>
inline void copy_row(unsigned char* to, const T* row, int lane) {
  int first = lane % 8 * 8;
  bool present = row != nullptr;
#pragma unroll
  for (int column = 0; column < COLUMNS; column += kPanelColumns) {
    if (first < COLUMNS - column) {
      // What is not there has no address either, wherever this points.
      start_copy(to + column / kPanelColumns * ROWS * kPanelRowBytes, row + first + column, present);
    }
  }
}

// Of COUNT rows from `first_row` on, a multiple of 8, by a warp: `row_of(row)` says where one lies. What is known of
// some rows is asked for together, so that one's address does not wait for another's copy.
template <int ROWS, int COLUMNS, int COUNT, int BATCH = 4, typename RowOf>
inline void copy_rows(unsigned char* panels, int first_row, int lane, RowOf row_of) {
  static_assert(BATCH % 2 == 0 && COUNT % (4 * BATCH) == 0, "four rows at a time, even and odd fours");
  unsigned char* even = panels + place_in_panel(first_row, lane);
  unsigned char* odd = panels + place_in_panel(first_row + 4, lane);
#pragma unroll
  for (int start = 0; start < COUNT; start += 4 * BATCH) {
    decltype(row_of(0)) rows[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      rows[i] = row_of(first_row + start + 4 * i + lane / 8);
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      int row = start + i / 2 * 8;
      copy_row<ROWS, COLUMNS>((i % 2 ? odd : even) + row * kPanelRowBytes, rows[i], lane);
    }
  }
}

// Copies the queries of a piece of work, each of WARPS every so many 32 rows.
template <int WARPS, typename T, int D, int DV>
inline void copy_queries(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block,
    const TileWork& work,
    int index,
    int warp) {
  using Block = WarpgroupBlock<T, D, DV>;
  constexpr int buffers = Block::size.query_buffers;
  constexpr int vector = 8; // elements
  constexpr int batch = Block::size.finder_has_registers ? 4 : 2;
  constexpr unsigned nowhere = ~0u;
  Barriers& barriers = block.barriers();
  int lane = lane_index();
  if (index >= buffers) {
    wait(barriers.free_queries[index % buffers], (index / buffers - 1) % 2);
  }
  const T* first = static_cast<const T*>(b.q) + work.seq.first_token * p.q.token +
      work.kv_head * p.group * p.q.head;
  int num_rows = active_consumers(work.owned) * kWarpgroupRows;
  // Lanes find the places of as many rows at a time.
#pragma unroll 1
  for (int start = warp * kWarpThreads; start < num_rows; start += WARPS * kWarpThreads) {
    int own = work.owned.first + start + lane;
    unsigned place = unsigned(own / p.group) * unsigned(p.q.token / vector) +
        unsigned(own % p.group) * unsigned(p.q.head / vector);
    place = own <= work.owned.last ? place : nowhere;
    copy_rows<Block::rows, D, kWarpThreads, batch>(
        block.queries(index, 0), start, lane, [&](int row) {
          unsigned vectors = shuffle(place, row % kWarpThreads);
          return vectors == nowhere ? nullptr : first + int64_t(vectors) * vector;
        });
  }
  arrive_after_copies(barriers.full_queries[index % buffers]);
}

// Finds work, for all others, and may copy its queries.
template <typename T, int D, int DV>
inline void find_work(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block) {
  using Block = WarpgroupBlock<T, D, DV>;
  Barriers& barriers = block.barriers();
  WorkQueue<Block::rows, Block::size.finder_has_registers> queue(p, b);
  for (int index = 0;; index++) {
    if (index > 0) {
      wait(barriers.wanted_work, (index - 1) % 2);
    }
    TileWork next = queue.take();
    int slot = index % kWorkSlots;
    if (index >= kWorkSlots) {
      wait(barriers.free_work[slot], (index / kWorkSlots - 1) % 2);
    }
    if (lane_index() == 0) {
      *reinterpret_cast<TileWork*>(block.work_words(index)) = next;
      arrive(barriers.full_work[slot]);
    }
    if (next.owned.empty()) {
      return;
    }
    if constexpr (Block::size.finder_has_registers) {
      // Soon the next one will be wanted: the answer is there when the queries are.
      if (key_tiles(next.keys, Block::keys).count <= kStages) {
        queue.ask();
      }
      copy_queries<1>(p, b, block, next, index, 0);
    }
  }
}

// Copies keys and values of a piece of work, each of the warps its part of a tile's keys, which its lanes
// look up one tile ahead. `before`: tiles of the work before.
template <typename T, int D, int DV>
inline void copy_tiles(
    const AttentionParameters& p,
    const WarpgroupBlock<T, D, DV>& block,
    const KeyRows<T>& rows,
    Sequence seq,
    KeyTiles tiles,
    int before,
    int first_key) {
  using Block = WarpgroupBlock<T, D, DV>;
  constexpr int warp_keys = Block::keys / Block::copying_warps;
  constexpr int lane_keys = warp_keys / kWarpThreads;
  int lane = lane_index();
  Barriers& barriers = block.barriers();
  int first_new = seq.seq_len - seq.q_len;
  // What memory says of the lane's keys of a tile, which nobody waits for before remember(). No slot: not
  // one of this step's tokens.
  int blocks[lane_keys], slots[lane_keys];
  auto position_of = [&](int tile, int i) {
    return tiles.first + tile * Block::keys + first_key + i * kWarpThreads + lane;
  };
  auto has_key = [&](int tile, int position) {
    return tile < tiles.count && position >= tiles.keys.first && position < tiles.keys.last;
  };
  auto find = [&](int tile) {
#pragma unroll
    for (int i = 0; i < lane_keys; i++) {
      int position = position_of(tile, i);
      bool exists = has_key(tile, position);
      blocks[i] = 0, slots[i] = -1;
      if (exists) {
        blocks[i] = rows.block_table[position / block_size * p.block_table_entry];
      }
      if (has_new_tokens && exists && position >= first_new) {
        slots[i] = rows.slot_mapping[seq.token_at(position) * p.slot_mapping_stride];
      }
    }
  };
  auto remember = [&](int tile) {
    sync_warp();
#pragma unroll
    for (int i = 0; i < lane_keys; i++) {
      int position = position_of(tile, i);
      KeyPlace<T> place{nullptr, nullptr};
      if (has_key(tile, position)) {
        if (slots[i] >= 0) {
          int64_t token = seq.token_at(position);
          place = {rows.keys + token * p.k.token, rows.values + token * p.v.token};
        } else {
          int64_t block = blocks[i], slot = position % block_size;
          place = {
              rows.cached_keys + block * p.k_cache.block + slot * p.k_cache.slot,
              rows.cached_values + block * p.v_cache.block + slot * p.v_cache.slot};
        }
      }
      block.places(tile)[first_key + i * kWarpThreads + lane] = place;
    }
    sync_warp();
  };

  find(0);
  remember(0);
  // Values follow the keys of the next tile, in the order in which they are needed.
  for (int tile = 0; tile <= tiles.count; tile++) {
    // What multiplies has two more tiles to do, or four: long enough to find work and copy what is first.
    if (tile == metal::max(tiles.count - 2, 0) && first_key == 0 && lane == 0) {
      arrive(barriers.wanted_work);
    }
    find(tile + 1);
    if (tile < tiles.count) {
      int counted = before + tile, stage = stage_of(counted);
      if (counted >= kStages) {
        wait(barriers.free_keys[stage], parity_of(counted - kStages));
      }
      const KeyPlace<T>* from = block.places(tile);
      copy_rows<Block::keys, D, warp_keys>(
          block.stage_keys(stage), first_key, lane, [&](int key) { return from[key].key; });
      arrive_after_copies(barriers.full_keys[stage]);
    }
    if (tile > 0) {
      int counted = before + tile - 1, stage = stage_of(counted);
      if (counted >= kStages) {
        wait(barriers.free_values[stage], parity_of(counted - kStages));
      }
      const KeyPlace<T>* from = block.places(tile - 1);
      copy_rows<Block::keys, DV, warp_keys>(
          block.stage_values(stage), first_key, lane, [&](int key) { return from[key].value; });
      arrive_after_copies(barriers.full_values[stage]);
    }
    remember(tile + 1);
  }
}

// Likewise, work after work.
template <typename T, int D, int DV>
inline void copy_keys_and_values(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block,
    int warp) {
  using Block = WarpgroupBlock<T, D, DV>;
  int before = 0;
  for (int index = 0;; index++) {
    const TileWork work = await_work(block, index);
    if (work.owned.empty()) {
      return;
    }
    if constexpr (!Block::size.finder_has_registers) {
      copy_queries<Block::copying_warps>(p, b, block, work, index, warp);
    }
    KeyRows<T> rows = key_rows<T>(p, b, work.seq, work.kv_head);
    KeyTiles tiles = key_tiles(work.keys, Block::keys);
    int first_key = warp * (Block::keys / Block::copying_warps);
    copy_tiles<T, D, DV>(p, block, rows, work.seq, tiles, before, first_key);
    before += tiles.count;
  }
}

// What a warp does of the warpgroup that prepares.
template <typename T, int D, int DV>
inline void prepare_work(
    const AttentionParameters& p,
    const AttentionBuffers& b,
    const WarpgroupBlock<T, D, DV>& block,
    int warp) {
  if (warp == 0) {
    find_work<T, D, DV>(p, b, block);
  } else if (warp == 1) {
    if (writes_new_tokens) {
      TokenWriter<T, D, DV>(p, b, block).write_all();
    }
  } else {
    copy_keys_and_values<T, D, DV>(p, b, block, warp - 2);
  }
}

} // namespace pomona
