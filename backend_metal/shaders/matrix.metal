// Products of 8x8 float32 matrices that a simdgroup holds in registers.
//
// A lane holds two neighbours in a row of each matrix, as in MLX's steel kernels:
//
//   columns   0,1  2,3  4,5  6,7
//   row 0       0    1    8    9
//   row 1       2    3   10   11
//   row 2       4    5   12   13
//   row 3       6    7   14   15
//   rows 4-7  the same, 16 lanes further
//
// Operands become float32 in registers: the products of 16-bit numbers are then exact on every
// generation, bfloat16 has no matrix instruction on the first two, and float32 costs no rate.
//
// A lane of the right operand needs one element of each of 8 rows of the left one's columns: 2 to
// 4 bytes of threadgroup memory at a time. Which 8 columns of the left operand make a matrix is
// free as long as both sides agree, so every matrix takes each `width`-th column, and a lane reads
// `width` neighbours at once that belong to `width` matrices.

using Matrix = simdgroup_matrix<float, 8, 8>;

METAL_FUNC short lane_row(ushort lane) {
  return (lane & 16) / 4 + (lane & 6) / 2;
}

METAL_FUNC short lane_column(ushort lane) {
  return (lane & 8) / 2 + (lane & 1) * 2;
}

// Over the four lanes that hold a row; all of them get the result.
METAL_FUNC float row_max(float x) {
  x = max(x, simd_shuffle_xor(x, ushort(1)));
  return max(x, simd_shuffle_xor(x, ushort(8)));
}

METAL_FUNC float row_sum(float x) {
  x += simd_shuffle_xor(x, ushort(1));
  return x + simd_shuffle_xor(x, ushort(8));
}

METAL_FUNC void multiply_accumulate(
    thread Matrix& sum, thread const Matrix& left, float right, float next) {
  Matrix matrix;
  matrix.thread_elements()[0] = right;
  matrix.thread_elements()[1] = next;
  simdgroup_multiply_accumulate(sum, left, matrix, sum);
}

template <int COLUMNS>
struct KeyColumns {
  // Neighbours that a lane reads at once: 8 or 16 bytes where the columns allow it.
  static constant constexpr const int width = COLUMNS % 32 == 0 ? 4 : 2;
};

// Columns of one row of queries, times `scale`, as the left operand of add_scores. No row: zeros.
template <typename T, int COLUMNS>
METAL_FUNC void load_queries(
    thread Matrix (&queries)[COLUMNS / 8],
    const device T* row,
    bool has_row,
    float scale,
    ushort lane) {
  constexpr int width = KeyColumns<COLUMNS>::width;
  const short first = lane_column(lane) * width;
#pragma clang loop unroll(full)
  for (int i = 0; i < COLUMNS / 8; i++) {
    const int column = i / width * (8 * width) + first + i % width;
    queries[i].thread_elements()[0] = has_row ? scale * float(row[column]) : 0.0f;
    queries[i].thread_elements()[1] = has_row ? scale * float(row[column + width]) : 0.0f;
  }
}

// scores[j] += queries * transpose(keys 8 j to 8 j + 7).
template <typename T, int COLUMNS, int KEYS, int STRIDE>
METAL_FUNC void add_scores(
    thread Matrix (&scores)[KEYS / 8],
    thread const Matrix (&queries)[COLUMNS / 8],
    const threadgroup T* keys,
    ushort lane) {
  constexpr int width = KeyColumns<COLUMNS>::width;
  using Vector = vec<T, width>;
  keys += lane_column(lane) * STRIDE + lane_row(lane) * width;
#pragma clang loop unroll(full)
  for (int i = 0; i < COLUMNS / 8; i += width) {
    Vector key[KEYS / 8];
    Vector next[KEYS / 8];
#pragma clang loop unroll(full)
    for (int j = 0; j < KEYS / 8; j++) {
      const threadgroup T* at = keys + 8 * j * STRIDE + 8 * i;
      key[j] = *reinterpret_cast<const threadgroup Vector*>(at);
      next[j] = *reinterpret_cast<const threadgroup Vector*>(at + STRIDE);
    }
    // Sums in the inner loop: one that follows another of the same matrix waits for it.
#pragma clang loop unroll(full)
    for (int w = 0; w < width; w++) {
#pragma clang loop unroll(full)
      for (int j = 0; j < KEYS / 8; j++) {
        multiply_accumulate(scores[j], queries[i + w], float(key[j][w]), float(next[j][w]));
      }
    }
  }
}

// out += weights * values. Element e of out[2 c + h] is in column 16 c + 2 lane_column + 2 h + e:
// four neighbours for each pair of matrices.
template <typename T, int COLUMNS, int KEYS, int STRIDE>
METAL_FUNC void add_values(
    thread Matrix (&out)[COLUMNS / 8],
    thread const Matrix (&weights)[KEYS / 8],
    const threadgroup T* values,
    ushort lane) {
  values += lane_row(lane) * STRIDE + lane_column(lane) * 2;
#pragma clang loop unroll(full)
  for (int j = 0; j < KEYS / 8; j++) {
#pragma clang loop unroll(full)
    for (int i = 0; i < COLUMNS / 8; i += 2) {
      const threadgroup T* at = values + 8 * j * STRIDE + 8 * i;
      const vec<T, 4> value = *reinterpret_cast<const threadgroup vec<T, 4>*>(at);
      multiply_accumulate(out[i], weights[j], float(value[0]), float(value[1]));
      multiply_accumulate(out[i + 1], weights[j], float(value[2]), float(value[3]));
    }
  }
}

// This lane's elements of a row of `KEYS` scores, to and from threadgroup memory.
template <int KEYS>
METAL_FUNC void store_share(
    thread const Matrix (&scores)[KEYS / 8], threadgroup float* row, ushort lane) {
#pragma clang loop unroll(full)
  for (int j = 0; j < KEYS / 8; j++) {
    threadgroup float2* at = reinterpret_cast<threadgroup float2*>(row + 8 * j + lane_column(lane));
    *at = float2(scores[j].thread_elements()[0], scores[j].thread_elements()[1]);
  }
}

template <int SHARES, int ROWS, int KEYS>
METAL_FUNC void add_shares(
    thread Matrix (&scores)[KEYS / 8], const threadgroup float* row, ushort lane) {
#pragma clang loop unroll(full)
  for (int j = 0; j < KEYS / 8; j++) {
    float2 sum = float2(0.0f);
    for (int share = 0; share < SHARES; share++) {
      const threadgroup float* at = row + share * ROWS * KEYS + 8 * j + lane_column(lane);
      sum += *reinterpret_cast<const threadgroup float2*>(at);
    }
    scores[j].thread_elements()[0] = sum.x;
    scores[j].thread_elements()[1] = sum.y;
  }
}
