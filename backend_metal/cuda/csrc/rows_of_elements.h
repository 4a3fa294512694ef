// Arrays of up to 3 dimensions as kernels take them whose rows may have any strides.
#pragma once

#include <mlx/mlx.h>

#include "common/parameters.h"

namespace pomona::cuda {

namespace mx = mlx::core;

constexpr int kVectorBytes = 16; // of the widest load

// Of the dimension that is `behind` the last one; 0 where it has one element, or is not there.
inline int64_t stride_before_last(const mx::array& in, int behind) {
  int dim = int(in.ndim()) - 1 - behind;
  return dim >= 0 && in.shape(dim) > 1 ? in.strides(dim) : 0;
}

inline ElementStrides element_strides(const mx::array& in) {
  return {
      stride_before_last(in, 2),
      stride_before_last(in, 1),
      in.shape(-1) > 1 ? in.strides(-1) : 1};
}

// Rows of each index of the first dimension.
inline int inner_rows(const mx::array& in) {
  return in.ndim() > 1 ? in.shape(-2) : 1;
}

inline int num_rows(const mx::array& in) {
  return int(in.size() / in.shape(-1));
}

// Whether every row is whole vectors, each at a multiple of its size.
inline bool has_vectors(const mx::array& in) {
  auto strides = element_strides(in);
  auto is_multiple = [](int64_t bytes) { return bytes % kVectorBytes == 0; };
  int64_t itemsize = in.itemsize();
  return strides.dim == 1 && is_multiple(in.shape(-1) * itemsize) && is_multiple(in.offset()) &&
      is_multiple(strides.token * itemsize) && is_multiple(strides.head * itemsize);
}

} // namespace pomona::cuda
