// Which work the blocks of a prefill by warpgroups do, one piece after another.
//
// Tiles with the most keys come before the others, so that all multiprocessors are done at about the same time;
// and one section of the K/V heads, and one group of sequences, after the other, whose keys and values the
// cache of the GPU holds together.
#pragma once

#include "prefill_tiles.h"
#include "warpgroup_intrinsics.h"

namespace pomona {

// Pieces are numbered in their order. A block's first one has its own number, and so has the second one of many;
// each other one goes to the block that asks for it first. The first warp of the block has the queue.
// KEEPS_SEQUENCES: there are registers for them.
//
// b.counters: pieces beyond the own ones that were given away, of which there are none before and after a
// launch.
template <int ROWS, bool KEEPS_SEQUENCES>
class WorkQueue {
 public:
  WorkQueue(const AttentionParameters& p, const AttentionBuffers& b)
      : p_(p), b_(b), first_(load(0)) {
    tiles_ = tiles_of(first_);
    for (int first = kWarpThreads; first < p.num_seqs; first += kWarpThreads) {
      tiles_ += tiles_of(load(first));
    }
  }

  // Asks for the next piece, unless the block has one. Nobody waits for the answer before take().
  void ask() {
    if (taken_ >= own_pieces() && thread_index() == 0) {
      answer_ = add_shared(b_.counters, 1);
    }
    has_asked_ = true;
  }

  // The next piece that has rows; behind the last one, one without rows.
  TileWork take() {
    for (;;) {
      if (!has_asked_) {
        ask();
      }
      int index = next();
      if (index >= count()) {
        break;
      }
      int heads = b_.work_heads, head = index % heads, rest = index / heads, split = 0;
      if (count() > tiles_ * heads) {
        int section = rest / tiles_, sections = p_.num_kv_heads / heads;
        rest %= tiles_;
        head += section % sections * heads;
        split = section / sections;
      }
      Place place = find(rest);
      int first = place.tile * ROWS;
      TileRows rows{first, metal::min(first + ROWS, place.seq.q_len * p_.group) - 1};
      TileWork work = work_of(p_, place.seq, rows, head, split);
      if (!work.owned.empty()) {
        return work;
      }
    }
    TileWork none{};
    none.owned = TileRows{0, -1};
    return none;
  }

 private:
  // All pieces.
  int count() const {
    return tiles_ * p_.num_kv_heads * p_.num_splits;
  }

  // That the block need not ask for: of several pieces a block, enough are left to be asked for.
  int own_pieces() const {
    return count() > 3 * grid_size().x ? 2 : 1;
  }

  // Above all levels of a sequence.
  static constexpr unsigned kGroupLevels = 1u << 26;

  struct Place {
    Sequence seq;
    int tile; // of the sequence
  };

  // Of 32 sequences, the lane's. Its tiles lie on levels [low, high), by how many keys they have; those of a
  // group that comes earlier lie above.
  struct LaneSequence {
    Sequence seq;
    unsigned low, high;
  };

  // One with one query token has no tiles: it is the decode kernel's.
  LaneSequence load(int first) const {
    int index = first + thread_index() % kWarpThreads;
    LaneSequence own{};
    if (index < p_.num_seqs) {
      own.seq = load_sequence(p_, b_.seq_lens, b_.cu_seqlens_q, index);
      if (own.seq.q_len > 1) {
        unsigned group = thread_index() % kWarpThreads / b_.work_seqs;
        own.low = (kWarpThreads - group) * kGroupLevels +
            metal::max(own.seq.seq_len - own.seq.q_len, 0) * p_.group / ROWS;
        own.high = own.low + (own.seq.q_len * p_.group + ROWS - 1) / ROWS;
      }
    }
    return own;
  }

  // Of the 32.
  static int tiles_of(const LaneSequence& own) {
    return sum_of_warp(own.high - own.low);
  }

  // From the highest level down, of 32 sequences after 32 others.
  Place find(int index) const {
    LaneSequence own = KEEPS_SEQUENCES ? first_ : load(0);
    int first = 0;
    // Below `top`, down to `bottom`, the same sequences have tiles.
    unsigned top = largest_of_warp(own.high);
    for (;;) {
      if (top == 0) {
        first += kWarpThreads;
        own = load(first);
        top = largest_of_warp(own.high);
      }
      unsigned bottom =
          largest_of_warp(top > own.high ? own.high : (top > own.low ? own.low : 0));
      unsigned here = vote(own.low < top && top <= own.high);
      int wide = count_bits(here), tiles = (top - bottom) * wide;
      if (index < tiles) {
        unsigned bit = 1u << thread_index() % kWarpThreads;
        unsigned chosen = vote((here & bit) != 0 && count_bits(here & (bit - 1)) == index % wide);
        int lane = count_bits(chosen - 1);
        auto of_lane = [&](int value) { return int(shuffle(unsigned(value), lane)); };
        int tile = int(top) - 1 - index / wide - of_lane(own.low);
        if (!KEEPS_SEQUENCES) {
          return {load_sequence(p_, b_.seq_lens, b_.cu_seqlens_q, first + lane), tile};
        }
        return {
            {first + lane,
             of_lane(own.seq.first_token),
             of_lane(own.seq.q_len),
             of_lane(own.seq.seq_len)},
            tile};
      }
      index -= tiles;
      top = bottom;
    }
  }

  // The next piece's number. Who has the first one of the first pieces, which have the most keys, has the last one
  // of the second.
  int next() {
    int blocks = grid_size().x, block = block_position().x, own = taken_++;
    has_asked_ = false;
    if (own < own_pieces()) {
      return own == 0 ? block : 2 * blocks - 1 - block;
    }
    // Blocks ask once behind each piece but the first ones, so that all together ask this often.
    int asked = count() - (own_pieces() - 1) * blocks;
    if (thread_index() == 0 && answer_ == asked - 1u) {
      *b_.counters = 0;
    }
    return own_pieces() * blocks + shuffle(answer_, 0);
  }

  const AttentionParameters& p_;
  const AttentionBuffers& b_;
  const LaneSequence first_; // of the first 32
  int tiles_; // of all sequences, for one K/V head and split
  int taken_ = 0;
  bool has_asked_ = false;
  unsigned answer_ = 0;
};

} // namespace pomona
