// Products of rows of 16-bit integers with weights of 4 or 8 bits, which become integers, too. Sums
// over a chunk are exact; element (m, n) is one chain of multiply-adds over the chunks in order, the
// same bits for any number of rows, position among them, number of threads and kernel.
#pragma once

#include <algorithm>

#include "cpu/gemm/kernels/integer_rows.h"
#include "cpu/gemm/lanes/integer_vectors.h"
#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/scale_lanes.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// Columns that are computed at a time, one in each lane of a Vector8.
inline constexpr Index kLanes = 8;
// Columns of a task: whole passes of any kernel.
inline constexpr Index kTaskColumns = 32;
// Rows that meet some columns while these are unpacked: kDepth of their integers fit half of a
// second-level cache.
inline constexpr Index kIntegerRows = 128;

// What one task computes: all rows times some columns.
struct IntegerTask {
  IntegerRows a;
  Index rows;
  QuantizedMatrix b; // of 4 or 8 bits; its depth is a multiple of kChunk
  Index first_column, last_column;
  float* c; // [rows, b.columns]
};

// A chunk of a column's words as integers, in the order of ShortLayout.
template <int Bits>
[[gnu::always_inline]] inline void unpack_chunk(const uint32_t* words, Shorts* out) {
  constexpr int in_lane = 16 / Bits;
  constexpr uint16_t mask = (1 << Bits) - 1;
  for (int vector = 0; vector < Bits / 4; ++vector) {
    UnsignedShorts lanes;
    if constexpr (Bits == 4) {
      lanes = load<UnsignedShorts>(words);
    } else {
      // 16 bytes of either half.
      typedef uint64_t Quarters __attribute__((vector_size(32)));
      const auto* from = reinterpret_cast<const char*>(words) + 16 * vector;
      const Quarters a = load<Quarters>(from), b = load<Quarters>(from + 32 - 16 * vector);
      lanes = (UnsignedShorts)(vector == 0 ? __builtin_shufflevector(a, b, 0, 1, 4, 5)
                                           : __builtin_shufflevector(a, b, 0, 1, 6, 7));
    }
    for (int i = 0; i < in_lane; ++i) {
      UnsignedShorts part = lanes >> (i * Bits);
      if (i < in_lane - 1) {
        part &= mask;
      }
      out[vector * in_lane + i] = (Shorts)part;
    }
  }
}

// Scales and biases of kDepth elements of kLanes columns; HalfGroups: one for each half chunk.
template <bool HalfGroups>
struct ChunkScales {
  static constexpr Index kEach = HalfGroups ? kHalves : 1;

  [[gnu::always_inline]] void
  load(const QuantizedMatrix& b, Index first, Index last, Index k0, Index kc) {
    const Index groups = divide_up(kc, b.group_size);
    for (Index group = 0; group < groups; group += kLanes) {
      ScaleLanes<Vector8>::load(
          b, first, last, k0 / b.group_size + group, scales + group, biases + group);
    }
    per_group = std::max<Index>(1, b.group_size / kChunk);
  }

  // acc += what a chunk adds to a row's elements in these columns.
  [[gnu::always_inline]] void
  add(const Integers* sums, Index chunk, float scale, const float* row_sums, Vector8* acc) const {
    Integers low, high;
    add_lanes(sums, &low, &high);
    if constexpr (HalfGroups) {
      const Vector8 *s = scales + 2 * chunk, *t = biases + 2 * chunk;
      *acc += __builtin_convertvector(low, Vector8) * (s[0] * scale);
      *acc += t[0] * row_sums[0];
      *acc += __builtin_convertvector(high, Vector8) * (s[1] * scale);
      *acc += t[1] * row_sums[1];
    } else {
      const Index group = chunk / per_group;
      *acc += __builtin_convertvector(low + high, Vector8) * (scales[group] * scale);
      *acc += biases[group] * (row_sums[0] + row_sums[1]);
    }
  }

  Vector8 scales[kDepth / kChunk * kEach];
  Vector8 biases[kDepth / kChunk * kEach];
  Index per_group; // chunks
};

// The columns that one pass over the depth computes.
struct ColumnLanes {
  ColumnLanes(const QuantizedMatrix& b, Index first, Index last)
      : last(last - 1), count(std::min(kLanes, last - first)) {
    const Index stride = b.depth / 32 * b.bits;
    for (Index lane = 0; lane < kLanes; ++lane) {
      words[lane] = b.words + std::min(first + lane, last - 1) * stride;
    }
  }

  Index last;
  Index count;
  const uint32_t* words[kLanes]; // lanes beyond the last column compute it again
};

[[gnu::always_inline]] inline Vector8 load_lanes(const float* from, Index count) {
  if (count == kLanes) {
    return load<Vector8>(from);
  }
  float lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  return load<Vector8>(lanes);
}

[[gnu::always_inline]] inline void store_lanes(float* to, const Vector8& values, Index count) {
  if (count == kLanes) {
    return store(to, values);
  }
  float lanes[kLanes];
  store(lanes, values);
  std::copy_n(lanes, count, to);
}

// Products of a chunk of a column's words with one of a row's integers; those of its first half add up
// to the first four lanes, and of its second to the others.
template <int Bits>
struct ShortDot {
  [[gnu::always_inline]] static void
  dot(const uint32_t* words, const int16_t* integers, Integers* sum) {
    Shorts weights[kPhases];
    unpack_chunk<Bits>(words, weights);
#pragma GCC unroll 4
    for (Index phase = 0; phase < kPhases; ++phase) {
      Integers product;
      multiply_pairs(weights[phase], load<Shorts>(integers + 16 * phase), &product);
      *sum = phase == 0 ? product : *sum + product;
    }
  }
};

// One row: weights go from memory through registers.
template <int Bits, bool HalfGroups, typename Dot>
[[gnu::always_inline]] inline void multiply_one_row(const IntegerTask& task) {
  constexpr Index chunk_words = kChunk / 32 * Bits;
  const QuantizedMatrix& b = task.b;
  ChunkScales<HalfGroups> scales;
  for (Index first = task.first_column; first < task.last_column; first += kLanes) {
    const ColumnLanes lanes(b, first, task.last_column);
    const Index ahead = kLanes * b.depth / 32 * Bits;
    Vector8 acc{};
    for (Index k0 = 0; k0 < b.depth; k0 += kDepth) {
      const Index kc = std::min(kDepth, b.depth - k0);
      scales.load(b, first, lanes.last, k0, kc);
      for (Index chunk = 0; chunk < kc / kChunk; ++chunk) {
        const Index at = k0 / kChunk + chunk;
        Integers sums[kLanes];
#pragma GCC unroll 8
        for (Index lane = 0; lane < kLanes; ++lane) {
          const uint32_t* words = lanes.words[lane] + at * chunk_words;
          // The next columns' words; a hint may point past the end.
          __builtin_prefetch(words + ahead, 0, 2);
          Dot::dot(words, task.a.integers + at * kChunk, sums + lane);
        }
        scales.add(sums, chunk, task.a.scales[at], task.a.sums + at * kHalves, &acc);
      }
    }
    store_lanes(task.c + first, acc, lanes.count);
  }
}

// More rows: weights are unpacked once for all of them.
template <int Bits, bool HalfGroups>
[[gnu::always_inline]] inline void multiply_more_rows(const IntegerTask& task) {
  constexpr Index chunk_words = kChunk / 32 * Bits;
  const QuantizedMatrix& b = task.b;
  const Index chunks = b.depth / kChunk;
  ChunkScales<HalfGroups> scales;
  // [chunk][phase][column]
  Shorts unpacked[kDepth / kChunk][kPhases][kLanes];
  for (Index row0 = 0; row0 < task.rows; row0 += kIntegerRows) {
    const Index end = std::min(row0 + kIntegerRows, task.rows);
    for (Index first = task.first_column; first < task.last_column; first += kLanes) {
      const ColumnLanes lanes(b, first, task.last_column);
      for (Index k0 = 0; k0 < b.depth; k0 += kDepth) {
        const Index kc = std::min(kDepth, b.depth - k0);
        scales.load(b, first, lanes.last, k0, kc);
        for (Index lane = 0; lane < kLanes; ++lane) {
          const uint32_t* words = lanes.words[lane] + k0 / kChunk * chunk_words;
          for (Index chunk = 0; chunk < kc / kChunk; ++chunk, words += chunk_words) {
            Shorts weights[kPhases];
            unpack_chunk<Bits>(words, weights);
            for (Index phase = 0; phase < kPhases; ++phase) {
              unpacked[chunk][phase][lane] = weights[phase];
            }
          }
        }
        for (Index row = row0; row < end; ++row) {
          float* c = task.c + row * b.columns + first;
          Vector8 acc = k0 > 0 ? load_lanes(c, lanes.count) : Vector8{};
          for (Index chunk = 0; chunk < kc / kChunk; ++chunk) {
            const Index at = row * chunks + k0 / kChunk + chunk;
            Integers sums[kLanes];
#pragma GCC unroll 4
            for (Index phase = 0; phase < kPhases; ++phase) {
              const Shorts x = load<Shorts>(task.a.integers + at * kChunk + 16 * phase);
#pragma GCC unroll 8
              for (Index lane = 0; lane < kLanes; ++lane) {
                Integers product;
                multiply_pairs(x, unpacked[chunk][phase][lane], &product);
                sums[lane] = phase == 0 ? product : sums[lane] + product;
              }
            }
            scales.add(sums, chunk, task.a.scales[at], task.a.sums + at * kHalves, &acc);
          }
          store_lanes(c, acc, lanes.count);
        }
      }
    }
  }
}

// A kernel's two halves, with integers as they are.
template <int Bits>
struct ShortProducts {
  [[gnu::always_inline]] static void
  round(const float* rows, Index count, Index depth, const RoundedRows& out) {
    round_rows<ShortLayout<Bits>>(rows, count, depth, out);
  }

  [[gnu::always_inline]] static void multiply(const IntegerTask& task) {
    const bool half_groups = task.b.group_size < kChunk;
    if (task.rows == 1) {
      using Dot = ShortDot<Bits>;
      half_groups ? multiply_one_row<Bits, true, Dot>(task)
                  : multiply_one_row<Bits, false, Dot>(task);
    } else {
      half_groups ? multiply_more_rows<Bits, true>(task) : multiply_more_rows<Bits, false>(task);
    }
  }
};

} // namespace pomona::gemm
