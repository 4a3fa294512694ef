// The products of integer_products.h, bit for bit, where an instruction multiplies bytes (AVX-512 VNNI):
// a row's 16-bit integer is 256 times a signed byte plus another one, a weight an unsigned byte.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/gemm/kernels/integer_products.h"
#include "cpu/gemm/kernels/integer_rows.h"
#include "cpu/gemm/lanes/scale_lanes.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

typedef int32_t Integers16 __attribute__((vector_size(64)));

// A chunk's bytes fill two vectors of 8 lanes, of which the first four hold its first half.
inline constexpr Index kBytePhases = 2;
inline constexpr Index kPhaseLanes = 8;
// One instruction multiplies four elements of a lane.
inline constexpr Index kSteps = kBytePhases * kPhaseLanes;
// Columns of one pass over the depth: vectors of them, with a column in each lane.
inline constexpr int kGroups = 2;
inline constexpr Index kByteColumns = kGroups * width_of<Vector16>;
static_assert(kTaskColumns % kByteColumns == 0);

// A chunk's high bytes, then its low ones, either in the order in which weights are unpacked.
template <int Bits>
struct ByteLayout {
  // Where word i of a chunk of weights is unpacked to; with 4 bits, the low halves of its bytes, and
  // their high halves a phase behind.
  static constexpr Index step(Index word) {
    return Bits == 4 ? word : word / 4 % 2 * kPhaseLanes + word / 8 * 4 + word % 4;
  }

  static constexpr Index place(Index i) {
    return Bits == 4 ? (i % 2 * kPhaseLanes + i / 8) * 4 + i % 8 / 2 : step(i / 4) * 4 + i % 4;
  }

  [[gnu::always_inline]] static void put(int16_t* chunk, Index i, int32_t number) {
    auto* bytes = reinterpret_cast<int8_t*>(chunk);
    bytes[place(i)] = static_cast<int8_t>((number + 128) >> 8);
    bytes[kChunk + place(i)] = static_cast<int8_t>(number);
  }
};

// Lane i of sums: plus the products of its four unsigned bytes of `weights` and signed ones of `bytes`.
[[gnu::always_inline]] inline void
add_byte_products(const Integers16& weights, const Integers16& bytes, Integers16* sums) {
  *sums = (Integers16)__builtin_ia32_vpdpbusd_v16si(*sums, weights, bytes);
}
[[gnu::always_inline]] inline void
add_byte_products(const Integers& weights, const Integers& bytes, Integers* sums) {
  *sums = (Integers)__builtin_ia32_vpdpbusd_v8si(*sums, weights, bytes);
}

// As ShortDot.
template <int Bits>
struct ByteDot {
  [[gnu::always_inline]] static void
  dot(const uint32_t* words, const int16_t* integers, Integers* sum) {
    Integers weights[kBytePhases];
    if constexpr (Bits == 4) {
      const Integers bits = load<Integers>(words);
      weights[0] = bits & 0x0f0f0f0f;
      weights[1] = bits >> 4 & 0x0f0f0f0f;
    } else {
      const Integers a = load<Integers>(words), b = load<Integers>(words + kPhaseLanes);
      weights[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
      weights[1] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    }
    const auto* bytes = reinterpret_cast<const char*>(integers);
    *sum = Integers{};
    for (Index part = 0; part < 2; ++part) {
      *sum <<= 8;
      for (Index phase = 0; phase < kBytePhases; ++phase) {
        const auto* from = bytes + part * kChunk + phase * sizeof(Integers);
        add_byte_products(weights[phase], load<Integers>(from), sum);
      }
    }
  }
};

// Weights of kByteColumns columns, kDepth deep: a step of 16 columns is a vector.
using ByteStrip = Integers16[kDepth / kChunk][kSteps][kGroups];

// Columns [first, last], of which lanes beyond are the last again.
template <int Bits>
[[gnu::always_inline]] inline void unpack_bytes(
    const QuantizedMatrix& b, Index first, Index last, Index k0, Index kc, ByteStrip& out) {
  constexpr Index width = width_of<Vector16>;
  constexpr Index chunk_words = kChunk / 32 * Bits;
  const Index stride = b.depth / 32 * Bits, size = b.columns * stride;
  const Index words = kc / 32 * Bits;
  for (int group = 0; group < kGroups; ++group) {
    for (Index word = 0; word < words; word += width) {
      Vector16 block[width];
      for (Index lane = 0; lane < width; ++lane) {
        const Index column = std::min(first + group * width + lane, last);
        const Index at = column * stride + k0 / 32 * Bits + word;
        block[lane] = load_within<Vector16>(b.words, at, size);
        // The next columns' words; a hint may point past the end.
        __builtin_prefetch(b.words + at + kByteColumns * stride, 0, 2);
      }
      transpose(block);
      for (Index i = 0; i < std::min(width, words - word); ++i) {
        const Integers16 bits = (Integers16)block[i];
        const Index chunk = (word + i) / chunk_words, at = (word + i) % chunk_words;
        const Index step = ByteLayout<Bits>::step(at);
        if constexpr (Bits == 4) {
          out[chunk][step][group] = bits & 0x0f0f0f0f;
          out[chunk][kPhaseLanes + step][group] = bits >> 4 & 0x0f0f0f0f;
        } else {
          out[chunk][step][group] = bits;
        }
      }
    }
  }
}

// Scales and biases of a strip's columns, 16 groups of elements at a time.
class StripScales {
 public:
  [[gnu::always_inline]] void load(const QuantizedMatrix& b, Index first, Index last, Index group) {
    if (group >= first_ && group < first_ + kWidth) {
      return;
    }
    first_ = group / kWidth * kWidth;
    for (int half = 0; half < kGroups; ++half) {
      ScaleLanes<Vector16>::load(b, first + half * kWidth, last, first_, scales_[half], biases_[half]);
    }
  }

  const Vector16& scale(int half, Index group) const {
    return scales_[half][group - first_];
  }
  const Vector16& bias(int half, Index group) const {
    return biases_[half][group - first_];
  }

 private:
  static constexpr Index kWidth = width_of<Vector16>;

  Index first_ = -kWidth;
  Vector16 scales_[kGroups][kWidth];
  Vector16 biases_[kGroups][kWidth];
};

// The first `count` columns of a strip, of a row of c.
[[gnu::always_inline]] inline void load_row(const float* c, Index count, Vector16* out) {
  for (Index group = 0; group < kGroups; ++group, c += width_of<Vector16>) {
    const Index valid = std::clamp<Index>(count - group * width_of<Vector16>, 0, width_of<Vector16>);
    out[group] = valid == width_of<Vector16> ? load<Vector16>(c)
                                             : load_part<Vector16>(c, valid * sizeof(float));
  }
}
[[gnu::always_inline]] inline void store_row(const Vector16* row, Index count, float* c) {
  for (Index group = 0; group < kGroups; ++group, c += width_of<Vector16>) {
    const Index valid = std::clamp<Index>(count - group * width_of<Vector16>, 0, width_of<Vector16>);
    if (valid == width_of<Vector16>) {
      store(c, row[group]);
    } else {
      std::memcpy(c, row + group, valid * sizeof(float));
    }
  }
}

// Rows [row, row + Rows) times a strip of columns, over kc of the depth.
template <int Rows, bool HalfGroups>
[[gnu::always_inline]] inline void multiply_strip(
    const IntegerTask& task,
    const ByteStrip& strip,
    const StripScales& scales,
    Index row,
    Index first,
    Index count,
    Index k0,
    Index kc) {
  constexpr Index parts = HalfGroups ? kHalves : 1;
  const Index chunks = task.b.depth / kChunk;
  const IntegerRows& a = task.a;
  Vector16 acc[Rows][kGroups] = {};
  float* c = task.c + row * task.b.columns + first;
  if (k0 > 0) {
    for (int r = 0; r < Rows; ++r) {
      load_row(c + r * task.b.columns, count, acc[r]);
    }
  }
  for (Index chunk = 0; chunk < kc / kChunk; ++chunk) {
    const Index at = row * chunks + k0 / kChunk + chunk;
    for (Index part = 0; part < parts; ++part) {
      Integers16 high[Rows][kGroups] = {}, low[Rows][kGroups] = {};
#pragma GCC unroll 16
      for (Index i = 0; i < kSteps / parts; ++i) {
        constexpr Index lanes = kPhaseLanes / parts;
        const Index step = i / lanes * kPhaseLanes + part * lanes + i % lanes;
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const auto* bytes =
              reinterpret_cast<const char*>(a.integers + (at + r * chunks) * kChunk) + 4 * step;
          int32_t highs, lows;
          std::memcpy(&highs, bytes, sizeof(highs));
          std::memcpy(&lows, bytes + kChunk, sizeof(lows));
          const Integers16 h = highs - Integers16{}, l = lows - Integers16{};
#pragma GCC unroll 2
          for (int group = 0; group < kGroups; ++group) {
            add_byte_products(strip[chunk][step][group], h, &high[r][group]);
            add_byte_products(strip[chunk][step][group], l, &low[r][group]);
          }
        }
      }
      const Index group_of_depth = (k0 + chunk * kChunk + part * kChunk / parts) / task.b.group_size;
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const float* sums = a.sums + (at + r * chunks) * kHalves;
        const float scale = a.scales[at + r * chunks];
        const float sum = HalfGroups ? sums[part] : sums[0] + sums[1];
#pragma GCC unroll 2
        for (int group = 0; group < kGroups; ++group) {
          const Integers16 total = (high[r][group] << 8) + low[r][group];
          acc[r][group] += __builtin_convertvector(total, Vector16) *
              (scales.scale(group, group_of_depth) * scale);
          acc[r][group] += scales.bias(group, group_of_depth) * sum;
        }
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    store_row(acc[r], count, c + r * task.b.columns);
  }
}

template <int Bits, bool HalfGroups>
[[gnu::always_inline]] inline void multiply_bytes(const IntegerTask& task) {
  const QuantizedMatrix& b = task.b;
  ByteStrip strip;
  for (Index row0 = 0; row0 < task.rows; row0 += kIntegerRows) {
    const Index end = std::min(row0 + kIntegerRows, task.rows);
    for (Index first = task.first_column; first < task.last_column; first += kByteColumns) {
      const Index count = std::min(kByteColumns, task.last_column - first);
      StripScales scales;
      for (Index k0 = 0; k0 < b.depth; k0 += kDepth) {
        const Index kc = std::min(kDepth, b.depth - k0);
        unpack_bytes<Bits>(b, first, first + count - 1, k0, kc, strip);
        scales.load(b, first, first + count - 1, k0 / b.group_size);
        Index row = row0;
        for (; row + 4 <= end; row += 4) {
          multiply_strip<4, HalfGroups>(task, strip, scales, row, first, count, k0, kc);
        }
        if (row + 2 <= end) {
          multiply_strip<2, HalfGroups>(task, strip, scales, row, first, count, k0, kc);
          row += 2;
        }
        if (row < end) {
          multiply_strip<1, HalfGroups>(task, strip, scales, row, first, count, k0, kc);
        }
      }
    }
  }
}

// A kernel's two halves, with integers as two bytes.
template <int Bits>
struct ByteProducts {
  [[gnu::always_inline]] static void
  round(const float* rows, Index count, Index depth, const RoundedRows& out) {
    round_rows<ByteLayout<Bits>>(rows, count, depth, out);
  }

  [[gnu::always_inline]] static void multiply(const IntegerTask& task) {
    const bool half_groups = task.b.group_size < kChunk;
    if (task.rows == 1) {
      using Dot = ByteDot<Bits>;
      half_groups ? multiply_one_row<Bits, true, Dot>(task)
                  : multiply_one_row<Bits, false, Dot>(task);
    } else {
      half_groups ? multiply_bytes<Bits, true>(task) : multiply_bytes<Bits, false>(task);
    }
  }
};

} // namespace pomona::gemm
