// Some columns of a quantized matrix as floats, for whoever uses them more than once.
#pragma once

#include <algorithm>

#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/quantized_lanes.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// Columns of c in registers.
inline constexpr Index kStrip = 8;

// Whole vectors and whole strips. kDepth of them about fill a first-level cache.
template <typename Vector>
inline constexpr Index unpacked_columns = std::max(width_of<Vector>, kStrip);

// Rows [k0, k0 + kc) of columns [first, first + valid), at most unpacked_columns, to
// `out` [kc, unpacked_columns]; what is beyond the valid ones may be anything.
using Unpack =
    void (*)(const QuantizedMatrix& b, Index first, Index valid, Index k0, Index kc, float* out);

template <typename Vector, int Bits>
[[gnu::always_inline]] inline void
unpack(const QuantizedMatrix& b, Index first, Index valid, Index k0, Index kc, float* out) {
  constexpr Index columns = unpacked_columns<Vector>;
  QuantizedLanes<Vector, Bits, columns / width_of<Vector>> lanes(b, first, valid);
  lanes.unpack(k0, kc, [out](Index k, int group, const Vector& weights)
                           __attribute__((always_inline)) {
    store(out + k * columns + group * width_of<Vector>, weights);
  });
}

} // namespace pomona::gemm
