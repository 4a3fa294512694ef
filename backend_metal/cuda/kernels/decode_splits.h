// How a decode's keys are cut into splits: as many of all rows together as there are blocks for.
//
// p.keys_per_split is the least length of a split, and p.num_splits is the number of those of all rows.
//
// A unit is up to kTileRows query heads of one sequence that share a K/V head. Its keys are counted in tiles.
// `longest` is the least length for which all units together have `num_splits` splits or fewer. A unit's
// are equally long but for the last. Where all blocks have room at a time none waits for another to end, and
// those that end early leave the memory to the rest. So the last bits of a row depend on the batch.
#pragma once

#include "attend.h"

namespace pomona {

struct DecodeSplit {
  Sequence seq; // index: p.num_seqs where there is none
  int unit; // of the sequence
  int split, num_splits; // of the unit
  int first_block; // of the unit's splits
  KeyRange keys;
};

// By warps, of which a lane looks at every 32nd sequence, and at no other.
template <int KEYS>
struct DecodeSplits {
  const AttentionParameters& p;
  const AttentionBuffers& b;
  int passes; // of a K/V head
  int units; // of a sequence
  int longest; // in tiles
  unsigned tiles_of_lane = 0; // of the lane's first sequence

  DecodeSplits(const AttentionParameters& p, const AttentionBuffers& b) : p(p), b(b) {
    passes = (p.group + kTileRows - 1) / kTileRows;
    units = p.num_kv_heads * passes;
    if (lane() < p.num_seqs) {
      tiles_of_lane = load_tiles(lane());
    }
    unsigned of_lane = 0, most_of_lane = 0;
    for (int index = lane(); index < p.num_seqs; index += kWarpThreads) {
      unsigned tiles = tiles_of(index);
      of_lane += tiles;
      most_of_lane = metal::max(most_of_lane, tiles);
    }
    int tiles = int(sum_of_warp(of_lane)) * units, most = largest_of_warp(most_of_lane);
    // Were all splits equal; a split has `keys_per_split` or more, a unit `max_splits` or fewer.
    longest = (tiles + p.num_splits - 1) / p.num_splits;
    longest = metal::max(longest, (p.keys_per_split + KEYS - 1) / KEYS);
    longest = metal::max(longest, (most + p.max_splits - 1) / p.max_splits);
    // Then there is nowhere to leave the states of splits.
    if (!has_partials) {
      longest = metal::max(longest, most);
    }
    // Each unit has one split at most beyond what its tiles over the length come to.
    int enough = most, spare = p.num_splits - p.num_seqs * units;
    if (spare > 0) {
      enough = metal::min(enough, (tiles + spare - 1) / spare);
    }
    enough = metal::max(enough, longest);
    while (longest < enough) {
      const int step = (enough - longest + kWarpThreads - 1) / kWarpThreads;
      const int tried = longest + lane() * step;
      // The longer, the fewer.
      const int too_short = count_bits(vote(splits_of_all(tried) > float(p.num_splits)));
      enough = metal::min(enough, longest + too_short * step);
      longest = too_short > 0 ? longest + (too_short - 1) * step + 1 : enough;
    }
  }

  // Of a block.
  DecodeSplit find(int block) const {
    int before = 0; // splits of one unit of each of the sequences before
    for (int first = 0; first < p.num_seqs; first += kWarpThreads) {
      unsigned of_lane = splits_of(first + lane(), longest), up_to = of_lane;
      for (int step = 1; step < kWarpThreads; step *= 2) {
        unsigned other = shuffle(up_to, metal::max(lane() - step, 0));
        up_to += lane() >= step ? other : 0;
      }
      int ended = count_bits(vote((before + int(up_to)) * units <= block));
      if (ended < kWarpThreads) {
        before += shuffle(up_to - of_lane, ended);
        int num_splits = shuffle(of_lane, ended);
        int own = block - before * units, unit = own / num_splits;
        return split_of(
            first + ended, unit, own - unit * num_splits, num_splits, block - own + unit * num_splits);
      }
      before += shuffle(up_to, kWarpThreads - 1);
    }
    return DecodeSplit{Sequence{p.num_seqs, 0, 0, 0}, 0, 0, 0, 0, KeyRange{0, 0}};
  }

  // The first one of a unit.
  DecodeSplit first_of(int index, int unit) const {
    unsigned of_lane = 0;
    for (int other = lane(); other < index; other += kWarpThreads) {
      of_lane += splits_of(other, longest);
    }
    int before = sum_of_warp(of_lane);
    int num_splits = (int(load_tiles(index)) + longest - 1) / longest;
    return split_of(index, unit, 0, num_splits, before * units + unit * num_splits);
  }

 private:
  static int lane() {
    return thread_index() % kWarpThreads;
  }

  KeyRange keys_of(Sequence seq) const {
    return KeyRange{seq.first_key(0, p.window), seq.last_key(0)};
  }

  static int num_tiles(KeyRange keys) {
    return keys.last > keys.first ? (keys.last - keys.first / KEYS * KEYS + KEYS - 1) / KEYS : 1;
  }

  // Of a unit of a sequence with one query token; others have none. One without keys has a tile, too:
  // somebody writes its zeros.
  unsigned load_tiles(int index) const {
    Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
    return seq.q_len == 1 ? num_tiles(keys_of(seq)) : 0;
  }

  unsigned tiles_of(int index) const {
    return index < kWarpThreads ? tiles_of_lane : load_tiles(index);
  }

  int splits_of(int index, int length) const {
    return index < p.num_seqs ? (int(tiles_of(index)) + length - 1) / length : 0;
  }

  // Each lane's of its own length. A quotient's error is less than what it is away from where it would be
  // rounded otherwise: numbers of tiles are below 2^22, and those of splits below 2^24.
  float splits_of_all(int length) const {
    const float reciprocal = 1.0f / float(length), middle = 0.5f * float(length - 1);
    float all = 0.0f;
    for (int first = 0; first < p.num_seqs; first += kWarpThreads) {
      const int index = first + lane();
      const float tiles = index < p.num_seqs ? float(tiles_of(index)) : 0.0f;
      const int count = metal::min(p.num_seqs - first, kWarpThreads);
      for (int begin = 0; begin < count; begin += 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          all += rounded((shuffle(tiles, begin + i) + middle) * reciprocal);
        }
      }
    }
    return all * float(units);
  }

  // To an integer, of less than 2^22 and no less than 0.
  static float rounded(float value) {
    constexpr float kOneAUnit = 1 << 23; // floats from here on are integers
    return (value + kOneAUnit) - kOneAUnit;
  }

  DecodeSplit split_of(int index, int unit, int split, int num_splits, int first_block) const {
    Sequence seq = load_sequence(p, b.seq_lens, b.cu_seqlens_q, index);
    KeyRange keys = keys_of(seq);
    if (num_splits > 1) {
      int length = (num_tiles(keys) + num_splits - 1) / num_splits * KEYS;
      int start = keys.first / KEYS * KEYS + split * length;
      keys = KeyRange{metal::max(keys.first, start), metal::min(keys.last, start + length)};
    }
    return DecodeSplit{seq, unit, split, num_splits, first_block, keys};
  }
};

// Where a split's state of a unit's first row lies; those of the unit's splits follow each other.
inline int64_t decode_partial(const AttentionParameters& p, int block, int floats) {
  return int64_t(block) * metal::min(p.group, kTileRows) * floats;
}

} // namespace pomona
