// The right-hand sides of products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pomona::gemm {

using Index = std::ptrdiff_t;

constexpr Index divide_up(Index a, Index b) {
  return (a + b - 1) / b;
}

// Element (i, j) is data[i * row_stride + j * column_stride]; strides in elements.
struct Matrix {
  const float* data;
  Index row_stride;
  Index column_stride;
};

// As many as tiles.h has in a strip.
inline constexpr Index kPanelColumns = 8;

// Columns as few rows read them: [panel][i][column], with zeros behind the last column.
struct ColumnPanels {
  const float* data;
  Index columns;
  Index depth;

  // Element (0, column).
  const float* at(Index column) const {
    return data + column / kPanelColumns * depth * kPanelColumns + column % kPanelColumns;
  }
};

enum class ScaleType { float32, float16, bfloat16 };

// The transpose of what MLX's affine quantization makes: column j, `depth` long, is a stream of
// `bits`-bit integers q, lowest bits first, in words; element (i, j) is q / 2^bits * (2^bits * scale)
// + bias with the scale and the bias of its group of `group_size` elements. That is rounded once where
// bias - 2^bits * scale is a float, as it is with the 16-bit scales that MLX makes.
struct QuantizedMatrix {
  const uint32_t* words; // [columns, depth * bits / 32]
  const void* scales; // [columns, depth / group_size] of `scale_type`
  const void* biases; // as scales
  ScaleType scale_type;
  int bits; // 2, 3, 4, 5, 6 or 8
  Index group_size; // a multiple of 32 that divides kDepth
  Index columns;
  Index depth;
};

// Part of a result's bits: where each chain of multiply-adds is cut. A strip of b this deep fits the
// first-level cache.
inline constexpr Index kDepth = 512;

} // namespace pomona::gemm
