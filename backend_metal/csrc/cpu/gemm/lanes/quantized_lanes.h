// Quantized columns as floats, as many at a time as a vector has lanes. Words are brought from rows
// into lanes first; then one instruction takes an element out of all columns.
#pragma once

#include <algorithm>

#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/scale_lanes.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// Element I of a stream of Bits-bit integers q, one stream a lane, as 1 + q / 2^Bits: the integer's
// bits are the float's first ones behind the point.
template <typename Vector, int Bits, int I>
[[gnu::always_inline]] inline void element(const WordsOf<Vector>* words, Vector* out) {
  constexpr int word = I * Bits / 32, offset = I * Bits % 32, top = 23 - Bits;
  constexpr uint32_t mask = ((1u << Bits) - 1) << top;
  WordsOf<Vector> bits;
  if constexpr (offset + Bits > 32) {
    bits = (words[word] >> offset | words[word + 1] << (32 - offset)) << top;
  } else if constexpr (offset > top) {
    bits = words[word] >> (offset - top);
  } else {
    bits = words[word] << (top - offset);
  }
  *out = (Vector)((bits & mask) | 0x3f800000u);
}

// Groups * width_of<Vector> columns. With more groups there are more sums under way at a time, each of
// which waits for itself.
template <typename Vector, int Bits, int Groups>
class QuantizedLanes {
 public:
  static constexpr int kGroups = Groups;

  // Columns [first, first + valid) of b; lanes beyond compute the last of them again.
  [[gnu::always_inline]] QuantizedLanes(const QuantizedMatrix& b, Index first, Index valid)
      : b_(b), first_(first), last_lane_(std::min(valid, Groups * kWidth) - 1) {}

  // use(k - k0, group, elements k of the group's columns) for k in [k0, k0 + kc), at most kDepth.
  template <typename Use>
  [[gnu::always_inline]] void unpack(Index k0, Index kc, const Use& use) {
    Words words[Groups][kPiece * Bits / 32];
    for (Index piece = 0; piece < kc; piece += kPiece) {
      const Index chunks = std::min(kPiece, kc - piece) / kChunk;
      for (int group = 0; group < Groups; ++group) {
        load_words(group, (k0 + piece) / kChunk * Bits, chunks * Bits, words[group]);
      }
      for (Index chunk = 0; chunk < chunks; ++chunk) {
        const Index k = piece + chunk * kChunk;
        const Index scale = (k0 + k) / b_.group_size;
        if (scale - first_scale_ >= kWidth) {
          first_scale_ = scale;
          for (int group = 0; group < Groups; ++group) {
            load_scales(group);
          }
        }
        Vector s[Groups], t[Groups];
        const Words* w[Groups];
        for (int group = 0; group < Groups; ++group) {
          s[group] = scales_[group][scale - first_scale_];
          t[group] = biases_[group][scale - first_scale_];
          w[group] = words[group] + chunk * Bits;
        }
        unpack_chunk(w, s, t, k, use, typename LanesUpTo<kChunk>::type{});
      }
    }
  }

 private:
  using Words = WordsOf<Vector>;

  static constexpr Index kWidth = width_of<Vector>;
  // Elements that fill whole words, of whatever width they are.
  static constexpr Index kChunk = 32;
  // Elements whose words are brought into lanes at once: what fits the first-level cache.
  static constexpr Index kPiece = Bits > 4 ? kDepth / 2 : kDepth;

  template <typename Use, int... I>
  [[gnu::always_inline]] static void unpack_chunk(
      const Words* const* words,
      const Vector* scales,
      const Vector* biases,
      Index k,
      const Use& use,
      Lanes<I...>) {
    (unpack_one<I>(words, scales, biases, k, use), ...);
  }

  template <int I, typename Use>
  [[gnu::always_inline]] static void unpack_one(
      const Words* const* words,
      const Vector* scales,
      const Vector* biases,
      Index k,
      const Use& use) {
#pragma GCC unroll 8
    for (int group = 0; group < Groups; ++group) {
      Vector weights;
      element<Vector, Bits, I>(words[group], &weights);
      weights = weights * scales[group] + biases[group];
      use(k + I, group, weights);
    }
  }

  Index column(int group, Index lane) const {
    return first_ + std::min(group * kWidth + lane, last_lane_);
  }

  [[gnu::always_inline]] void
  load_words(int group, Index first_word, Index count, Words* words) const {
    const Index stride = b_.depth / kChunk * Bits, size = b_.columns * stride;
    for (Index word = 0; word < count; word += kWidth) {
      Vector block[kWidth];
      for (Index lane = 0; lane < kWidth; ++lane) {
        const Index at = column(group, lane) * stride + first_word + word;
        block[lane] = load_within<Vector>(b_.words, at, size);
        // The next lanes' words; a hint may point past the end.
        __builtin_prefetch(b_.words + at + Groups * kWidth * stride, 0, 2);
      }
      transpose(block);
      for (Index i = 0; i < std::min(kWidth, count - word); ++i) {
        words[word + i] = (Words)block[i];
      }
    }
  }

  // kWidth scales and biases from first_scale_ on, of what element() makes of an integer.
  [[gnu::always_inline]] void load_scales(int group) {
    Vector scales[kWidth], biases[kWidth];
    const Index first = first_ + group * kWidth;
    ScaleLanes<Vector>::load(b_, first, first_ + last_lane_, first_scale_, scales, biases);
    for (Index i = 0; i < kWidth; ++i) {
      scales_[group][i] = scales[i] * float(1 << Bits);
      biases_[group][i] = biases[i] - scales_[group][i];
    }
  }

  const QuantizedMatrix& b_;
  Index first_;
  Index last_lane_;

  Index first_scale_ = -kWidth; // of those below
  Vector scales_[Groups][kWidth];
  Vector biases_[Groups][kWidth];
};

} // namespace pomona::gemm
