// Scales and biases of quantized columns as floats, a column in each lane.
#pragma once

#include <algorithm>

#include "blas/operands.h"
#include "blas/vectors.h"

namespace pomona::blas {

// 16 bits in each lane as floats; infinities and numbers too small for a normal float16 included.
template <typename Vector, typename Words>
[[gnu::always_inline]] inline void widen(const Words& words, ScaleType type, Vector* out) {
  if (type == ScaleType::bfloat16) {
    *out = (Vector)(words << 16);
    return;
  }
  const Words magnitude = (words & 0x7fff) << 13;
  // 2^112 moves the exponent's bias from 15 to 127.
  const Words scaled = (Words)((Vector)magnitude * 0x1p112f);
  const Words special = magnitude | 0x7f800000u;
  const Words bits = magnitude >= (0x7c00u << 13) ? special : scaled;
  *out = (Vector)(bits | (words & 0x8000) << 16);
}

// A vector of a matrix of `size` elements, from `at` on: past a row's end the next row's, and zeros
// past the matrix's.
template <typename V, typename T>
[[gnu::always_inline]] inline V load_within(const T* matrix, Index at, Index size) {
  constexpr Index count = sizeof(V) / sizeof(T);
  return at + count <= size ? load<V>(matrix + at)
                            : load_part<V>(matrix + at, (size - at) * sizeof(T));
}

// width_of<Vector> columns from `first` on, of which lanes beyond `last` are the last again.
template <typename Vector>
class ScaleLanes {
 public:
  static constexpr Index kWidth = width_of<Vector>;

  // Of groups [group, group + kWidth), kWidth vectors each.
  [[gnu::always_inline]] static void load(
      const QuantizedMatrix& b,
      Index first,
      Index last,
      Index group,
      Vector* scales,
      Vector* biases) {
    const Index stride = b.depth / b.group_size, size = b.columns * stride;
    if (b.scale_type == ScaleType::float32) {
      for (Index lane = 0; lane < kWidth; ++lane) {
        const Index at = std::min(first + lane, last) * stride + group;
        scales[lane] = load_within<Vector>(static_cast<const float*>(b.scales), at, size);
        biases[lane] = load_within<Vector>(static_cast<const float*>(b.biases), at, size);
      }
      transpose(scales);
      transpose(biases);
      return;
    }
    // A scale and a bias share a lane, so that one transposition serves both.
    using Words = WordsOf<Vector>;
    using Halves = HalvesOf<Vector>;
    Vector pairs[kWidth];
    for (Index lane = 0; lane < kWidth; ++lane) {
      const Index at = std::min(first + lane, last) * stride + group;
      const auto scale = load_within<Halves>(static_cast<const uint16_t*>(b.scales), at, size);
      const auto bias = load_within<Halves>(static_cast<const uint16_t*>(b.biases), at, size);
      pairs[lane] = (Vector)(__builtin_convertvector(scale, Words) |
                             __builtin_convertvector(bias, Words) << 16);
    }
    transpose(pairs);
    for (Index i = 0; i < kWidth; ++i) {
      const Words pair = (Words)pairs[i];
      widen(pair & 0xffff, b.scale_type, scales + i);
      widen(pair >> 16, b.scale_type, biases + i);
    }
  }
};

} // namespace pomona::blas
