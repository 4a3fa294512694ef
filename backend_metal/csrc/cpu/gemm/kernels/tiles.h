// Products of many rows: registers hold rows of a in their lanes times some columns of b. Columns that
// do not lie as they are read are packed first, quantized ones as floats.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/unpack.h"
#include "cpu/gemm/kernels/scratch.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// Columns of c in one task of many rows, and at most.
inline constexpr Index kColumns = 64;
inline constexpr Index kMostColumns = 256;
// a's rows [first, first + rows) as panels of `width` rows, [depth block][panel][k][row], padded
// with zeros.
struct Packed {
  const float* data;
  Index rows;
  Index width;
  Index depth;

  Index panels() const {
    return divide_up(rows, width);
  }
  const float* panel(Index index, Index k0, Index kc) const {
    return data + k0 * panels() * width + index * kc * width;
  }
};

// What one task computes: some panels times some columns of B, a Matrix, ColumnPanels or a
// QuantizedMatrix.
template <typename B>
struct Block {
  Packed a;
  Index first_panel, last_panel;
  B b; // one of a Matrix's strides is 1
  Index first_column, last_column;
  float alpha, beta;
  float* c;
  Index ldc;
};

// Up to kMostColumns columns as strips [strip][k][kStrip]. Read in place they would be one cache line
// in every row, which a power of two between rows makes fall into one set.
inline const float* pack_columns(const float* b, Index row_stride, Index columns, Index kc) {
  static thread_local Scratch scratch;
  float* out = scratch.get(kMostColumns * kDepth);
  const Index tail = columns % kStrip;
  for (Index k = 0; k < kc; ++k) {
    const float* from = b + k * row_stride;
    float* to = out + k * kStrip;
    for (Index column = 0; column < columns - tail; column += kStrip) {
      std::memcpy(to + column * kc, from + column, kStrip * sizeof(float));
    }
    for (Index column = columns - tail; column < columns; ++column) {
      to[(columns - tail) * kc + column % kStrip] = from[column];
    }
  }
  return out;
}

// A strip of `Columns` columns times `Panels` panels, over `kc` of the inner dimension. Either b is
// `Transposed`, its inner dimension contiguous, or it is a strip of packed columns, one row of which
// lies `Pitch` behind the one before. `next`: the strip that comes next, if it is in memory yet.
template <typename Vector, int Panels, int Columns, bool Transposed, int Pitch>
[[gnu::always_inline]] inline void
multiply(
    const float* a,
    Index panel_stride,
    const float* b,
    Index ldb,
    Index kc,
    const float* next,
    Vector* out) {
  constexpr Index width = width_of<Vector>;
  Vector sum[Columns][Panels] = {};
  for (Index k0 = 0; k0 < kc; k0 += 16) {
    if (next) {
      for (int j = 0; j < (Transposed ? Columns : kStrip); ++j) {
        __builtin_prefetch(Transposed ? next + j * ldb + k0 : next + k0 * Pitch + j * 16);
      }
    }
    const Index end = std::min<Index>(k0 + 16, kc);
    for (Index k = k0; k < end; ++k) {
      Vector rows[Panels];
      for (int p = 0; p < Panels; ++p) {
        rows[p] = *reinterpret_cast<const Vector*>(a + p * panel_stride + k * width);
      }
      for (int j = 0; j < Columns; ++j) {
        const float scalar = Transposed ? b[j * ldb + k] : b[k * Pitch + j];
        for (int p = 0; p < Panels; ++p) {
          sum[j][p] += rows[p] * scalar;
        }
      }
    }
  }
  for (int j = 0; j < Columns; ++j) {
    for (int p = 0; p < Panels; ++p) {
      out[j * Panels + p] = sum[j][p];
    }
  }
}

template <typename Vector, int Panels, int Columns, bool Transposed, int Pitch, typename B>
[[gnu::always_inline]] inline void
tile(
    const Block<B>& block,
    const float* b,
    Index ldb,
    Index ahead,
    Index panel,
    Index column,
    Index k0,
    Index kc) {
  constexpr Index width = width_of<Vector>;
  const bool is_new = panel == block.first_panel && column + Columns + kStrip <= block.last_column;
  Vector out[Columns * Panels];
  multiply<Vector, Panels, Columns, Transposed, Pitch>(
      block.a.panel(panel, k0, kc),
      kc * width,
      b,
      ldb,
      kc,
      ahead && is_new ? b + ahead : nullptr,
      out);
  const Index first = panel * width;
  const Index rows = std::min<Index>(Panels * width, block.a.rows - first);
  for (Index row = 0; row < rows; ++row) {
    const float* value = reinterpret_cast<const float*>(out) + row;
    float* c = block.c + (first + row) * block.ldc + column;
    for (int j = 0; j < Columns; ++j) {
      const float product = block.alpha * value[j * Panels * width];
      if (k0 > 0) {
        c[j] += product;
      } else {
        c[j] = block.beta == 0.0f ? product : block.beta * c[j] + product;
      }
    }
  }
}

// `b` is the strip from `column` on, and a column of it lies `step` behind the one before; the next
// strip is `ahead`, if it is in memory yet. `Wide`: columns that fill the registers beside two or three
// panels.
template <typename Vector, int Wide, int Columns, bool Transposed, int Pitch, typename B>
[[gnu::always_inline]] inline void
strip(
    const Block<B>& block,
    const float* b,
    Index step,
    Index ahead,
    Index column,
    Index k0,
    Index kc) {
  constexpr int wide = Columns < Wide ? Columns : Wide;
  for (Index panel = block.first_panel; panel < block.last_panel;) {
    const Index left = block.last_panel - panel;
    if (left == 1) {
      tile<Vector, 1, Columns, Transposed, Pitch>(block, b, step, ahead, panel, column, k0, kc);
      panel += 1;
    } else if (left == 2 || left == 4) {
      for (int j = 0; j < Columns; j += wide) {
        tile<Vector, 2, wide, Transposed, Pitch>(
            block, b + j * step, step, ahead, panel, column + j, k0, kc);
      }
      panel += 2;
    } else {
      for (int j = 0; j < Columns; j += wide) {
        tile<Vector, 3, wide, Transposed, Pitch>(
            block, b + j * step, step, ahead, panel, column + j, k0, kc);
      }
      panel += 3;
    }
  }
}

// Columns [first, last), of which a strip lies `distance` behind the one before. Transposed ones and
// panels are where memory has them, others were just written.
template <typename Vector, int Wide, bool Transposed, int Pitch, typename B>
[[gnu::always_inline]] inline void multiply_strips(
    const Block<B>& block,
    const float* b,
    Index distance,
    Index step,
    Index first,
    Index last,
    Index k0,
    Index kc) {
  constexpr bool in_memory = Transposed || std::is_same_v<B, ColumnPanels>;
  Index column = first;
  for (; column + kStrip <= last; column += kStrip, b += distance) {
    strip<Vector, Wide, kStrip, Transposed, Pitch>(
        block, b, step, in_memory ? distance : 0, column, k0, kc);
  }
  for (; column < last; ++column, b += step) {
    strip<Vector, Wide, 1, Transposed, Pitch>(block, b, step, 0, column, k0, kc);
  }
}

template <typename Vector, int Wide>
[[gnu::always_inline]] inline void multiply_tiles(const Block<Matrix>& block) {
  const Matrix& b = block.b;
  const Index first = block.first_column, last = block.last_column;
  for (Index k0 = 0; k0 < block.a.depth; k0 += kDepth) {
    const Index kc = std::min(kDepth, block.a.depth - k0);
    const float* from = b.data + k0 * b.row_stride + first * b.column_stride;
    if (b.row_stride == 1) {
      const Index step = b.column_stride;
      multiply_strips<Vector, Wide, true, 0>(
          block, from, kStrip * step, step, first, last, k0, kc);
    } else {
      const float* packed = pack_columns(from, b.row_stride, last - first, kc);
      multiply_strips<Vector, Wide, false, kStrip>(
          block, packed, kStrip * kc, 1, first, last, k0, kc);
    }
  }
}

template <typename Vector, int Wide>
[[gnu::always_inline]] inline void multiply_tiles(const Block<ColumnPanels>& block) {
  for (Index k0 = 0; k0 < block.a.depth; k0 += kDepth) {
    const Index kc = std::min(kDepth, block.a.depth - k0);
    static_assert(kPanelColumns == kStrip);
    const float* panels = block.b.at(block.first_column) + k0 * kPanelColumns;
    multiply_strips<Vector, Wide, false, kPanelColumns>(
        block,
        panels,
        block.b.depth * kPanelColumns,
        1,
        block.first_column,
        block.last_column,
        k0,
        kc);
  }
}

template <typename Vector, int Wide>
[[gnu::always_inline]] inline void
multiply_unpacked_tiles(const Block<QuantizedMatrix>& block, Unpack unpack) {
  constexpr Index columns = unpacked_columns<Vector>;
  alignas(64) float unpacked[kDepth * columns];
  for (Index k0 = 0; k0 < block.a.depth; k0 += kDepth) {
    const Index kc = std::min(kDepth, block.a.depth - k0);
    for (Index first = block.first_column; first < block.last_column; first += columns) {
      const Index last = std::min(first + columns, block.last_column);
      unpack(block.b, first, last - first, k0, kc, unpacked);
      multiply_strips<Vector, Wide, false, columns>(
          block, unpacked, kStrip, 1, first, last, k0, kc);
    }
  }
}

} // namespace pomona::gemm
