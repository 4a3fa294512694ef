// Columns of a matrix that lies in panels, as many vectors of them at a time as there are sums a row.
#pragma once

#include <algorithm>

#include "cpu/gemm/operands.h"
#include "cpu/gemm/lanes/vectors.h"

namespace pomona::gemm {

// Floats of a panel, and of the next ones, that are asked for ahead of those in use, into the
// second-level cache. A processor that does so by itself stops where a page of memory ends.
inline constexpr Index kPanelAhead = 512;

template <typename Vector, int Groups>
class PanelLanes {
 public:
  // Columns from `first` on, a panel's first, of panels that are `apart` from each other.
  [[gnu::always_inline]] PanelLanes(const ColumnPanels& b, Index first, Index apart) {
    const Index last = divide_up(b.columns, kPanelColumns) - 1;
    for (int part = 0; part < Groups * kParts; ++part) {
      const Index column = part * kPart;
      const Index panel = first / kPanelColumns + column / kPanelColumns * apart;
      // Lanes beyond the last panel compute it again.
      parts_[part] = b.at(std::min(panel, last) * kPanelColumns) + column % kPanelColumns;
    }
  }

  // use(k - k0, group, elements k of the group's columns) for k in [k0, k0 + kc).
  template <typename Use>
  [[gnu::always_inline]] void unpack(Index k0, Index kc, const Use& use) const {
    for (Index k = 0; k < kc; ++k) {
      if (k * kPanelColumns % kLineFloats == 0) {
#pragma GCC unroll 16
        for (int part = 0; part < Groups * kParts; ++part) {
          __builtin_prefetch(parts_[part] + (k0 + k) * kPanelColumns + kPanelAhead, 0, 2);
        }
      }
#pragma GCC unroll 16
      for (int group = 0; group < Groups; ++group) {
        use(k, group, elements(group, (k0 + k) * kPanelColumns));
      }
    }
  }

 private:
  static constexpr Index kLineFloats = 16; // of a cache
  // Lanes that one panel has.
  static constexpr Index kPart = std::min<Index>(width_of<Vector>, kPanelColumns);
  static constexpr int kParts = width_of<Vector> / kPart;

  [[gnu::always_inline]] Vector elements(int group, Index at) const {
    if constexpr (kParts == 1) {
      return load<Vector>(parts_[group] + at);
    } else {
      static_assert(kParts == 2);
      return join(load<Vector8>(parts_[2 * group] + at), load<Vector8>(parts_[2 * group + 1] + at));
    }
  }

  const float* parts_[Groups * kParts];
};

} // namespace pomona::gemm
