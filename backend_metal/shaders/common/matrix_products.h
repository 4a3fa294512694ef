// Scores and outputs of 8 rows as products of 8x8 matrices that a simdgroup holds in registers.
//
// All operands are float32 in registers, as in MLX's steel kernels: products of 16-bit numbers are
// then exact, the first two generations have no bfloat16 matrices, and float32 runs at full rate.
//
// A lane needs two elements of each 8x8 matrix, which is 2 to 8 bytes of a staged row. Which
// columns of the left operand make a matrix is free as long as the rows of the right one agree, and
// so is the order of the output's columns. So matrices interleave: a lane reads 2 or 4 neighbours
// at once, which belong to as many matrices.
#pragma once

#include "lane_map.h"

namespace pomona {

// sum += left * right, where the lane's elements of `right` are given.
inline void multiply_accumulate(
    thread Matrix& sum, thread const Matrix& left, float right, float next) {
  Matrix matrix;
  matrix.thread_elements()[0] = right;
  matrix.thread_elements()[1] = next;
  simdgroup_multiply_accumulate(sum, left, matrix, sum);
}

template <int N>
inline void clear(thread Matrix (&matrices)[N]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < N; i++) {
    matrices[i].thread_elements()[0] = 0.0f;
    matrices[i].thread_elements()[1] = 0.0f;
  }
}

// Matrices that interleave over the columns of queries and keys.
constexpr int interleaved(int columns) {
  return columns % (4 * kMatrixDim) == 0 ? 4 : 2;
}

// `COLUMNS` columns of one row of queries in float32; zeros unless `present`.
template <typename T, int COLUMNS>
inline void load_queries(
    thread Matrix (&queries)[COLUMNS / kMatrixDim], const device T* row, bool present, LaneMap at) {
  constexpr int width = interleaved(COLUMNS);
#pragma clang loop unroll(full)
  for (int i = 0; i < COLUMNS / kMatrixDim; i++) {
    int column = i / width * width * kMatrixDim + at.column * width + i % width;
    queries[i].thread_elements()[0] = present ? float(row[column]) : 0.0f;
    queries[i].thread_elements()[1] = present ? float(row[column + width]) : 0.0f;
  }
}

// scores += queries * transpose(keys), with `STRIDE` elements from one key to the next.
template <typename T, int COLUMNS, int KEYS, int STRIDE>
inline void add_scores(
    thread Matrix (&scores)[KEYS / kMatrixDim],
    thread const Matrix (&queries)[COLUMNS / kMatrixDim],
    const threadgroup T* keys,
    LaneMap at) {
  constexpr int width = interleaved(COLUMNS);
  using Neighbours = metal::vec<T, width>;
  keys += at.column * STRIDE + at.row * width;
#pragma clang loop unroll(full)
  for (int i = 0; i < COLUMNS / kMatrixDim; i += width) {
    Neighbours first[KEYS / kMatrixDim];
    Neighbours second[KEYS / kMatrixDim];
#pragma clang loop unroll(full)
    for (int j = 0; j < KEYS / kMatrixDim; j++) {
      const threadgroup T* key = keys + (j * STRIDE + i) * kMatrixDim;
      first[j] = *reinterpret_cast<const threadgroup Neighbours*>(key);
      second[j] = *reinterpret_cast<const threadgroup Neighbours*>(key + STRIDE);
    }
    // Keys in the inner loop: a product that adds to the matrix before it would wait for that.
#pragma clang loop unroll(full)
    for (int w = 0; w < width; w++) {
#pragma clang loop unroll(full)
      for (int j = 0; j < KEYS / kMatrixDim; j++) {
        multiply_accumulate(scores[j], queries[i + w], float(first[j][w]), float(second[j][w]));
      }
    }
  }
}

// out += weights * values. Two matrices of `out` interleave: see output_column.
template <typename T, int COLUMNS, int KEYS, int STRIDE>
inline void add_values(
    thread Matrix (&out)[COLUMNS / kMatrixDim],
    thread const Matrix (&weights)[KEYS / kMatrixDim],
    const threadgroup T* values,
    LaneMap at) {
  using Neighbours = metal::vec<T, 4>;
  values += at.row * STRIDE + at.column * 2;
#pragma clang loop unroll(full)
  for (int j = 0; j < KEYS / kMatrixDim; j++) {
#pragma clang loop unroll(full)
    for (int i = 0; i < COLUMNS / kMatrixDim; i += 2) {
      const threadgroup T* value = values + (j * STRIDE + i) * kMatrixDim;
      Neighbours four = *reinterpret_cast<const threadgroup Neighbours*>(value);
      multiply_accumulate(out[i], weights[j], float(four[0]), float(four[1]));
      multiply_accumulate(out[i + 1], weights[j], float(four[2]), float(four[3]));
    }
  }
}

// The column of the lane's first element in matrix `i` of an output of add_values.
inline int output_column(LaneMap at, int i) {
  return i / 2 * (2 * kMatrixDim) + at.column * 2 + i % 2 * 2;
}

} // namespace pomona
