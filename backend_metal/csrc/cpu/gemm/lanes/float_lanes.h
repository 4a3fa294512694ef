// Columns of a transposed float matrix, as many at a time as a vector has lanes.
#pragma once

#include <algorithm>

#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

template <typename Vector>
class FloatLanes {
 public:
  static constexpr int kGroups = 1;

  [[gnu::always_inline]] FloatLanes(const Matrix& b, Index first, Index valid) {
    for (Index j = 0; j < kWidth; ++j) {
      // Lanes beyond the last column compute it again.
      columns_[j] = b.data + (first + std::min(j, valid - 1)) * b.column_stride;
    }
    ahead_ = kWidth * b.column_stride;
  }

  // use(k - k0, 0, elements k of all columns) for k in [k0, k0 + kc).
  template <typename Use>
  [[gnu::always_inline]] void unpack(Index k0, Index kc, const Use& use) const {
    Vector block[kWidth];
    Index k = k0;
    for (; k + kWidth <= k0 + kc; k += kWidth) {
      for (Index j = 0; j < kWidth; ++j) {
        block[j] = load<Vector>(columns_[j] + k);
        // The next lanes' weights; a hint may point past the end.
        __builtin_prefetch(columns_[j] + ahead_ + k, 0, 2);
      }
      transpose(block);
#pragma GCC unroll 16
      for (Index i = 0; i < kWidth; ++i) {
        use(k - k0 + i, 0, block[i]);
      }
    }
    if (const Index left = k0 + kc - k) {
      for (Index j = 0; j < kWidth; ++j) {
        block[j] = load_part<Vector>(columns_[j] + k, left * sizeof(float));
      }
      transpose(block);
      for (Index i = 0; i < left; ++i) {
        use(k - k0 + i, 0, block[i]);
      }
    }
  }

 private:
  static constexpr Index kWidth = width_of<Vector>;

  const float* columns_[kWidth];
  Index ahead_;
};

} // namespace pomona::gemm
