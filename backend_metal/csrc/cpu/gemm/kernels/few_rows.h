// Products of a few rows, as a decode step has them. Columns of the result lie in a vector's lanes, so
// one row keeps all lanes busy, and every weight is read once, at the speed of memory. Each element
// is the same chain of multiply-adds as in tiles.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/gemm/lanes/float_lanes.h"
#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/panel_lanes.h"
#include "cpu/gemm/lanes/unpack.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// More rows are faster by panels of them, in tiles.h. Of unpacked columns there are more sums a
// register where vectors are long.
inline constexpr Index kFewRows = 8;
template <typename Vector>
inline constexpr Index few_unpacked_rows = width_of<Vector> == 16 ? 16 : 8;

// The number of rows that a kernel is compiled for, 1, 2, 4, 8 or 16: `rows`, or the next.
constexpr Index padded_rows(Index rows) {
  Index padded = 1;
  while (padded < rows) {
    padded *= 2;
  }
  return padded;
}

// A quantized matrix of which some columns at a time are unpacked.
struct UnpackedColumns {
  QuantizedMatrix matrix;
  Unpack unpack;
};

// What one task computes: all rows times some columns of B, a Matrix, ColumnPanels
// or UnpackedColumns.
template <typename B>
struct FewRows {
  const float* a; // [depth, padded_rows(rows)]
  Index rows; // at most kFewRows or few_unpacked_rows
  Index depth;
  B b; // a Matrix's row stride is 1
  Index first_column, last_column;
  float alpha, beta;
  float* c;
  Index ldc;
};

// The first `count` lanes of alpha * product + beta * c; of c itself in every depth but the first.
template <typename B, typename Product>
[[gnu::always_inline]] inline void
add_product(const FewRows<B>& task, bool first, const Product& product, float* c, Index count) {
  for (Index lane = 0; lane < count; ++lane) {
    const float scaled = task.alpha * product[lane];
    if (!first) {
      c[lane] += scaled;
    } else {
      c[lane] = task.beta == 0.0f ? scaled : task.beta * c[lane] + scaled;
    }
  }
}

// Adds to the sums of each row, one a group of lanes, its elements from k0 on times theirs, up to kDepth
// of them.
template <typename Vector, typename Lanes, int Rows, int Groups, typename B>
[[gnu::always_inline]] inline void
add_depth(const FewRows<B>& task, Lanes& lanes, Index k0, Vector (&sums)[Rows][Groups]) {
  const float* a = task.a + k0 * Rows;
  const auto add = [&](Index k, int group, const Vector& weights) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
      sums[row][group] += weights * a[k * Rows + row];
    }
  };
  lanes.unpack(k0, std::min(kDepth, task.depth - k0), add);
}

template <typename Vector, typename Lanes, int Rows, typename B>
[[gnu::always_inline]] inline void multiply_rows(const FewRows<B>& task) {
  constexpr int groups = Lanes::kGroups;
  constexpr Index width = width_of<Vector>;
  for (Index first = task.first_column; first < task.last_column; first += groups * width) {
    const Index valid = std::min(groups * width, task.last_column - first);
    Lanes lanes(task.b, first, valid);
    for (Index k0 = 0; k0 < task.depth; k0 += kDepth) {
      Vector sums[Rows][groups] = {};
      add_depth(task, lanes, k0, sums);
      for (Index row = 0; row < std::min<Index>(Rows, task.rows); ++row) {
        for (Index lane = 0; lane < valid; lane += width) {
          add_product(
              task,
              k0 == 0,
              sums[row][lane / width],
              task.c + row * task.ldc + first + lane,
              std::min(width, valid - lane));
        }
      }
    }
  }
}

template <typename Vector>
[[gnu::always_inline]] inline void multiply_few(const FewRows<Matrix>& task) {
  // One row takes as long as its columns' transposition: more sums at a time would gain nothing.
  using Lanes = FloatLanes<Vector>;
  if (task.rows == 1) {
    multiply_rows<Vector, Lanes, 1>(task);
  } else if (task.rows == 2) {
    multiply_rows<Vector, Lanes, 2>(task);
  } else if (task.rows <= 4) {
    multiply_rows<Vector, Lanes, 4>(task);
  } else {
    multiply_rows<Vector, Lanes, kFewRows>(task);
  }
}

// Panels that a row, or a few, meet together, at most.
inline constexpr int kStreams = 4;
inline constexpr Index kFewPanelColumns = kStreams * kPanelColumns;

// A few rows wait for nothing but memory. A task's panels are read as streams: each goes on from a panel
// to the next, which processors read ahead better than panels side by side. There are as many sums as
// hide how long one takes.
template <typename Vector, int Rows>
[[gnu::always_inline]] inline void multiply_streams(const FewRows<ColumnPanels>& task) {
  constexpr int width = width_of<Vector>;
  constexpr int most_sums = width == 8 ? 8 : 16; // AVX2 has half as many registers
  constexpr int streams = std::min<int>(kStreams, most_sums / Rows * width / kPanelColumns);
  constexpr int groups = streams * kPanelColumns / width;
  const Index panels = divide_up(task.last_column - task.first_column, kPanelColumns);
  const Index apart = divide_up(panels, streams);
  for (Index panel = 0; panel < apart; ++panel) {
    const Index first = task.first_column + panel * kPanelColumns;
    const PanelLanes<Vector, groups> lanes(task.b, first, apart);
    for (Index k0 = 0; k0 < task.depth; k0 += kDepth) {
      Vector sums[Rows][groups] = {};
      add_depth(task, lanes, k0, sums);
      for (Index row = 0; row < std::min<Index>(Rows, task.rows); ++row) {
        float products[streams][kPanelColumns];
        static_assert(sizeof(products) == sizeof(sums[row]));
        std::memcpy(products, sums[row], sizeof(products));
        for (int stream = 0; stream < streams; ++stream) {
          const Index column = first + stream * apart * kPanelColumns;
          const Index valid = std::min(kPanelColumns, task.last_column - column);
          add_product(task, k0 == 0, products[stream], task.c + row * task.ldc + column, valid);
        }
      }
    }
  }
}

template <typename Vector>
[[gnu::always_inline]] inline void multiply_few(const FewRows<ColumnPanels>& task) {
  if (task.rows == 1) {
    multiply_streams<Vector, 1>(task);
  } else if (task.rows == 2) {
    multiply_streams<Vector, 2>(task);
  } else if (task.rows <= 4) {
    multiply_streams<Vector, 4>(task);
  } else {
    multiply_streams<Vector, kFewRows>(task);
  }
}

// Columns that were unpacked.
template <typename Vector>
class UnpackedLanes {
 public:
  static constexpr int kGroups = unpacked_columns<Vector> / width_of<Vector>;

  UnpackedLanes(const UnpackedColumns& b, Index first, Index valid)
      : b_(b), first_(first), valid_(valid) {}

  // use(k - k0, group, elements k of the group's columns) for k in [k0, k0 + kc), at most kDepth.
  template <typename Use>
  [[gnu::always_inline]] void unpack(Index k0, Index kc, const Use& use) {
    constexpr Index columns = unpacked_columns<Vector>;
    b_.unpack(b_.matrix, first_, valid_, k0, kc, columns_);
    for (Index k = 0; k < kc; ++k) {
      for (int group = 0; group < kGroups; ++group) {
        use(k, group, load<Vector>(columns_ + k * columns + group * width_of<Vector>));
      }
    }
  }

 private:
  const UnpackedColumns& b_;
  Index first_;
  Index valid_;
  alignas(64) float columns_[kDepth * unpacked_columns<Vector>];
};

template <typename Vector>
[[gnu::always_inline]] inline void multiply_few(const FewRows<UnpackedColumns>& task) {
  using Lanes = UnpackedLanes<Vector>;
  if (task.rows == 1) {
    multiply_rows<Vector, Lanes, 1>(task);
  } else if (task.rows == 2) {
    multiply_rows<Vector, Lanes, 2>(task);
  } else if (task.rows <= 4) {
    multiply_rows<Vector, Lanes, 4>(task);
  } else if (task.rows <= 8) {
    multiply_rows<Vector, Lanes, 8>(task);
  } else if constexpr (few_unpacked_rows<Vector> > 8) {
    multiply_rows<Vector, Lanes, 16>(task);
  }
}

} // namespace pomona::gemm
