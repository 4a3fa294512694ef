// Which two elements of an 8x8 simdgroup matrix a lane holds in thread_elements(): both of one row,
// in neighbouring columns. The layout that MLX's own attention kernels rely on
// (mlx/backend/metal/kernels/steel/attn/mma.h).
#pragma once

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "constants.h"

namespace pomona {

typedef metal::simdgroup_matrix<float, kMatrixDim, kMatrixDim> Matrix;

struct LaneMap {
  ushort row;
  ushort column; // and the next one
};

inline LaneMap lane_map(uint lane) {
  ushort quad = lane / 4;
  ushort row = (quad & 4) + (lane / 2) % 4;
  ushort column = (quad & 2) * 2 + (lane % 2) * 2;
  return LaneMap{row, column};
}

// Over the columns of the lane's row: the lanes that share a row differ in these bits.
inline float row_max(float value) {
  value = metal::max(value, metal::simd_shuffle_xor(value, ushort(1)));
  return metal::max(value, metal::simd_shuffle_xor(value, ushort(8)));
}

inline float row_sum(float value) {
  value += metal::simd_shuffle_xor(value, ushort(1));
  return value + metal::simd_shuffle_xor(value, ushort(8));
}

} // namespace pomona
