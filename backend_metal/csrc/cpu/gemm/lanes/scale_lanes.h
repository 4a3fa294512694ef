// Scales and biases of quantized columns as floats, a column in each lane.
#pragma once

#include <algorithm>

#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

#if defined(__x86_64__) && !defined(__clang__)
[[gnu::always_inline]] inline void widen_float16(const HalvesOf<Vector8>& halves, Vector8* out) {
  typedef short Lanes __attribute__((vector_size(16)));
  *out = __builtin_ia32_vcvtph2ps256((Lanes)halves);
}
[[gnu::always_inline]] inline void widen_float16(const HalvesOf<Vector16>& halves, Vector16* out) {
  typedef short Lanes __attribute__((vector_size(32)));
  constexpr int all = -1, as_rounded = 4;
  *out = __builtin_ia32_vcvtph2ps512_mask((Lanes)halves, Vector16{}, all, as_rounded);
}
#else
template <typename Halves, typename Vector>
[[gnu::always_inline]] inline void widen_float16(const Halves& halves, Vector* out) {
  using Words = WordsOf<Vector>;
  const Words words = __builtin_convertvector(halves, Words);
  const Words magnitude = (words & 0x7fff) << 13;
  // 2^112 moves the exponent's bias from 15 to 127.
  const Words scaled = (Words)((Vector)magnitude * 0x1p112f);
  const Words special = magnitude | 0x7f800000u;
  const Words bits = magnitude >= (0x7c00u << 13) ? special : scaled;
  *out = (Vector)(bits | (words & 0x8000) << 16);
}
#endif

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
    for (Index lane = 0; lane < kWidth; ++lane) {
      const Index at = std::min(first + lane, last) * stride + group;
      load_floats(b.scales, b.scale_type, at, size, scales + lane);
      load_floats(b.biases, b.scale_type, at, size, biases + lane);
    }
    transpose(scales);
    transpose(biases);
  }

 private:
  [[gnu::always_inline]] static void
  load_floats(const void* matrix, ScaleType type, Index at, Index size, Vector* out) {
    if (type == ScaleType::float32) {
      *out = load_within<Vector>(static_cast<const float*>(matrix), at, size);
      return;
    }
    using Halves = HalvesOf<Vector>;
    const auto halves = load_within<Halves>(static_cast<const uint16_t*>(matrix), at, size);
    if (type == ScaleType::float16) {
      return widen_float16(halves, out);
    }
    *out = (Vector)(__builtin_convertvector(halves, WordsOf<Vector>) << 16);
  }
};

} // namespace pomona::gemm
