// Scores and outputs of a warp's 16 rows, in the registers of multiply_accumulate's sums: a lane has
// rows lane / 4 and lane / 4 + 8, and of every 8 columns two neighbours from 2 * (lane % 4).
// Two-byte elements go through tensor cores; float32 keeps all its bits, and the same registers.
#pragma once

#include "attention_tile.h"
#include "intrinsics.h"

namespace pomona {

// sums[column / 8] += rows [16, COLUMNS of `right`], scores of N * 8 keys against 16 queries.
template <typename T, int D, int STRIDE, int N>
struct Scores {
  static void add(float (&scores)[N][4], const T* queries, const T* keys, int lane) {
    const T* query = queries + lane % 16 * STRIDE + lane / 16 * 8;
    const T* key = keys + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll 8
    for (int dim = 0; dim < D; dim += 16) {
      unsigned left[4];
      load_matrices(left, query + dim);
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        unsigned right[4];
        load_matrices(right, key + j * 8 * STRIDE + dim);
        multiply_accumulate<T>(scores[j], left, right[0], right[1]);
        multiply_accumulate<T>(scores[j + 1], left, right[2], right[3]);
      }
    }
  }
};

struct alignas(16) FourFloats {
  float at[4];
};

template <int D, int STRIDE, int N>
struct Scores<float, D, STRIDE, N> {
  static void add(float (&scores)[N][4], const float* queries, const float* keys, int lane) {
    const float* query = queries + lane / 4 * STRIDE;
    const float* key = keys + lane % 4 * 2 * STRIDE;
#pragma unroll 2
    for (int dim = 0; dim < D; dim += 4) {
      FourFloats rows[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        rows[r] = *reinterpret_cast<const FourFloats*>(query + r * 8 * STRIDE + dim);
      }
#pragma unroll
      for (int j = 0; j < N; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          FourFloats column =
              *reinterpret_cast<const FourFloats*>(key + (j * 8 + e) * STRIDE + dim);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            scores[j][e] += rows[0].at[i] * column.at[i];
            scores[j][2 + e] += rows[1].at[i] * column.at[i];
          }
        }
      }
    }
  }
};

// sums [16, COLUMNS] += weights [16, N * 8 keys] * values.
template <typename T, int COLUMNS, int STRIDE, int N>
struct Values {
  static void add(
      float (&sums)[COLUMNS / 8][4], const float (&weights)[N][4], const T* values, int lane) {
    const T* value = values + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      unsigned left[4] = {
          pack<T>(weights[j][0], weights[j][1]),
          pack<T>(weights[j][2], weights[j][3]),
          pack<T>(weights[j + 1][0], weights[j + 1][1]),
          pack<T>(weights[j + 1][2], weights[j + 1][3])};
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; i += 2) {
        unsigned right[4];
        load_transposed(right, value + j * 8 * STRIDE + i * 8);
        multiply_accumulate<T>(sums[i], left, right[0], right[1]);
        multiply_accumulate<T>(sums[i + 1], left, right[2], right[3]);
      }
    }
  }
};

template <int COLUMNS, int STRIDE, int N>
struct Values<float, COLUMNS, STRIDE, N> {
  static void add(
      float (&sums)[COLUMNS / 8][4], const float (&weights)[N][4], const float* values, int lane) {
    const float* value = values + lane % 4 * 2;
#pragma unroll
    for (int key = 0; key < N * 8; key++) {
      int holder = lane / 4 * 4 + key % 8 / 2;
      float first = shuffle(weights[key / 8][key % 2], holder);
      float second = shuffle(weights[key / 8][2 + key % 2], holder);
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float element = value[key * STRIDE + i * 8 + e];
          sums[i][e] += first * element;
          sums[i][2 + e] += second * element;
        }
      }
    }
  }
};

} // namespace pomona
