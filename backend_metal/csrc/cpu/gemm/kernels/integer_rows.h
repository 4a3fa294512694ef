// Rows of floats as 16-bit integers with a scale for every 64 of them, which costs an element at most
// 2^-16 of the greatest beside it: a bfloat16, in which a GPU takes such a row, costs it 2^-9 of itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/gemm/lanes/integer_vectors.h"
#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// Elements that share a scale.
inline constexpr Index kChunk = 64;
// Vectors of 16-bit integers that a chunk fills.
inline constexpr Index kPhases = 4;
// Some weights have a scale for each half of a chunk.
inline constexpr Index kHalves = 2;

// Element x of a chunk is integer * scale. How a chunk's integers lie is for the kernel's layout to say:
// in the order in which it unpacks a chunk of quantized weights.
struct IntegerRows {
  const int16_t* integers; // [rows, depth / kChunk, kChunk]
  const float* scales; // [rows, depth / kChunk]
  const float* sums; // of a half chunk's elements: [rows, depth / kChunk, kHalves]
};

// Where rounded rows go: as in IntegerRows, from some row on.
struct RoundedRows {
  int16_t* integers;
  float* scales;
  float* sums;
};

// Integers as they are. The 16-bit lanes of a vector of weights hold 16 / Bits elements in a row each,
// of which phase p takes every one's p-th. The first half of the elements is always in the first half of
// the vectors.
template <int Bits>
struct ShortLayout {
  static constexpr Index place(Index i) {
    constexpr Index in_lane = 16 / Bits;
    const Index half = i / 32, lane = i % 32 / in_lane % 8, vector = i % 32 / in_lane / 8;
    return (vector * in_lane + i % in_lane) * 16 + half * 8 + lane;
  }

  [[gnu::always_inline]] static void put(int16_t* chunk, Index i, int32_t number) {
    chunk[place(i)] = static_cast<int16_t>(number);
  }
};

// The greatest magnitude's bits; what is not a number has greater ones than any that is.
[[gnu::always_inline]] inline int32_t greatest_bits(const float* x) {
  Integers greatest{};
  for (Index i = 0; i < kChunk; i += 8) {
    const Integers bits = load<Integers>(x + i) & 0x7fffffff;
    greatest = bits > greatest ? bits : greatest;
  }
  int32_t all = 0;
  for (int lane = 0; lane < 8; ++lane) {
    all = std::max(all, int32_t(greatest[lane]));
  }
  return all;
}

// A chunk that holds something that is not a finite number has no integers, and NaN for its scale.
template <typename Layout>
[[gnu::always_inline]] inline void
round_chunk(const float* x, int16_t* integers, float* scale, float* sums) {
  // The greatest that is two signed bytes, 127 * 256 + 127, as is its negative.
  constexpr float kGreatest = 32639.0f;
  // Added to a float below 2^22 it leaves the nearest integer in the last bits.
  constexpr float kRound = 0x1.8p23f;
  constexpr int32_t kRoundBits = 0x4b400000, kInfinity = 0x7f800000, kSmallest = 0x0d800000; // 2^-100
  const int32_t bits = greatest_bits(x);
  float greatest;
  std::memcpy(&greatest, &bits, sizeof(greatest));
  if (bits >= kInfinity || bits < kSmallest) {
    std::fill_n(integers, kChunk, int16_t(0));
    *scale = bits >= kInfinity ? __builtin_nanf("") : 0.0f;
    sums[0] = sums[1] = *scale;
    return;
  }
  const float inverse = kGreatest / greatest;
  *scale = greatest / kGreatest;
  for (Index half = 0; half < kHalves; ++half) {
    Integers sum{};
    alignas(32) int32_t rounded[32];
    for (Index i = 0; i < 32; i += 8) {
      const Integers number =
          (Integers)(load<Vector8>(x + 32 * half + i) * inverse + kRound) - kRoundBits;
      sum += number;
      store(rounded + i, number);
    }
    for (Index i = 0; i < 32; ++i) {
      Layout::put(integers, 32 * half + i, rounded[i]);
    }
    int32_t total = 0;
    for (int lane = 0; lane < 8; ++lane) {
      total += sum[lane];
    }
    sums[half] = static_cast<float>(total) * *scale;
  }
}

// `rows` is [count, depth].
template <typename Layout>
[[gnu::always_inline]] inline void
round_rows(const float* rows, Index count, Index depth, const RoundedRows& out) {
  for (Index chunk = 0; chunk < count * depth / kChunk; ++chunk) {
    round_chunk<Layout>(
        rows + chunk * kChunk,
        out.integers + chunk * kChunk,
        out.scales + chunk,
        out.sums + chunk * kHalves);
  }
}

} // namespace pomona::gemm
