// Which work the blocks of a prefill by warpgroups do, one piece after another.
//
// Sequences' last tiles, which have the most keys, come before the others, so that all multiprocessors are
// done at about the same time; and one section of the K/V heads after the other, whose keys and values
// the cache of the GPU holds together.
#pragma once

#include "cuda/prefill_tiles.h"
#include "cuda/warpgroup_intrinsics.h"

namespace pomona {

// Pieces are numbered in their order. A block's first one has its own number, and each other one goes
// to the block that asks for it first. The first warp of the block has the queue.
//
// b.counters: pieces beyond the first ones that were given away, of which there are none before and after a
// launch.
template <int ROWS>
class WorkQueue {
 public:
  WorkQueue(const AttentionParameters& p, const AttentionBuffers& b)
      : p_(p), b_(b), tiles_(find(-1).before), next_(block_position().x) {}

  // The next piece that has rows; behind the last one, one without rows.
  TileWork take() {
    int heads = p_.work_heads, sections = p_.num_kv_heads / heads;
    int count = tiles_ * p_.num_kv_heads * p_.num_splits;
    for (;;) {
      int index = next_ < 0 ? grid_size().x + ask(count) : next_;
      next_ = -1;
      if (index >= count) {
        break;
      }
      int head = index % heads, rest = index / heads;
      int tile = tiles_ - 1 - rest % tiles_;
      rest /= tiles_;
      Place place = find(tile);
      int first = (tile - place.before) * ROWS;
      TileRows rows{first, metal::min(first + ROWS, place.seq.q_len * p_.group) - 1};
      TileWork work =
          work_of(p_, place.seq, rows, rest % sections * heads + head, rest / sections);
      if (!work.owned.empty()) {
        return work;
      }
    }
    TileWork none{};
    none.owned = TileRows{0, -1};
    return none;
  }

 private:
  struct Place {
    Sequence seq;
    int before; // tiles of the sequences before
  };

  // The sequence that has a tile, of which each lane looks at one of 32; of -1, none, behind all of them. One with
  // one query token has no tiles: it is the decode kernel's.
  Place find(int tile) const {
    int before = 0;
    for (int first = 0; first < p_.num_seqs; first += kWarpThreads) {
      int index = first + thread_index() % kWarpThreads, tiles = 0;
      Sequence seq{};
      if (index < p_.num_seqs) {
        seq = load_sequence(p_, b_.seq_lens, b_.cu_seqlens_q, index);
        tiles = seq.q_len > 1 ? (seq.q_len * p_.group + ROWS - 1) / ROWS : 0;
      }
      int end = before + sum_up_to(tiles);
      int passed = count_bits(vote(tile < 0 || end <= tile));
      if (passed < kWarpThreads) {
        auto of_lane = [&](int value) { return int(shuffle(unsigned(value), passed)); };
        return {
            {first + passed, of_lane(seq.first_token), of_lane(seq.q_len), of_lane(seq.seq_len)},
            of_lane(end - tiles)};
      }
      before = shuffle(unsigned(end), kWarpThreads - 1);
    }
    return {{}, before};
  }

  // Of the lanes up to this one.
  static int sum_up_to(int value) {
    int lane = thread_index() % kWarpThreads;
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      int other = shuffle(unsigned(value), metal::max(lane - distance, 0));
      value += lane >= distance ? other : 0;
    }
    return value;
  }

  // Blocks ask once behind each piece, so that all together ask as often as there are pieces.
  int ask(int count) {
    unsigned taken = 0;
    if (thread_index() == 0) {
      taken = add_shared(b_.counters, 1);
      if (taken == count - 1u) {
        *b_.counters = 0;
      }
    }
    return shuffle(taken, 0);
  }

  const AttentionParameters& p_;
  const AttentionBuffers& b_;
  int tiles_; // of all sequences, for one K/V head and split
  int next_; // -1: ask for it
};

} // namespace pomona
