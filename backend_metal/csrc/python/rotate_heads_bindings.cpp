#include "python/rotate_heads_bindings.h"

#include <nanobind/stl/optional.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

void bind_rotate_heads(nb::module_& m, mx::Device device, RotateHeadsFunction* rotate) {
  m.def(
      "rotate_heads",
      [device, rotate](const mx::array& q,
               const mx::array& k,
               const mx::array& positions,
               const std::optional<mx::array>& q_weight,
               const std::optional<mx::array>& k_weight,
               const std::optional<mx::array>& frequencies,
               int dims,
               bool traditional,
               float base,
               float scale,
               float epsilon) {
        std::optional<HeadWeights> weights;
        if (q_weight && k_weight) {
          weights = {*q_weight, *k_weight};
        }
        float own_base = frequencies ? 0.0f : base;
        auto arrays = rotate(
            q,
            k,
            positions,
            weights,
            frequencies,
            {dims, traditional, own_base, scale, epsilon, weights.has_value()},
            mx::default_stream(device));
        return nb::make_tuple(arrays[0], arrays[1]);
      },
      "q"_a,
      "k"_a,
      "positions"_a,
      nb::kw_only(),
      "q_weight"_a.none(),
      "k_weight"_a.none(),
      "frequencies"_a.none(),
      "dims"_a,
      "traditional"_a,
      "base"_a,
      "scale"_a,
      "epsilon"_a);
}

} // namespace pomona
