#include "python/recurrent_bindings.h"

#include <nanobind/stl/optional.h>

#include "operators/recurrent.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

void bind_recurrent(nb::module_& m, mx::Device device) {
  m.def(
      "causal_conv",
      [device](const mx::array& x,
               const mx::array& weight,
               const std::optional<mx::array>& bias,
               const mx::array& states,
               const mx::array& read_slots,
               const mx::array& write_slots,
               const mx::array& cu_seqlens_q) {
        auto arrays = causal_conv(
            x,
            weight,
            bias,
            states,
            {read_slots, write_slots, cu_seqlens_q},
            mx::default_stream(device));
        return nb::make_tuple(arrays[0], arrays[1]);
      },
      "x"_a,
      "weight"_a,
      "bias"_a.none(),
      "states"_a,
      "read_slots"_a,
      "write_slots"_a,
      "cu_seqlens_q"_a);
  m.def(
      "linear_attention",
      [device](const mx::array& q,
               const mx::array& k,
               const mx::array& v,
               const mx::array& gates,
               const mx::array& betas,
               const mx::array& states,
               const mx::array& read_slots,
               const mx::array& write_slots,
               const mx::array& cu_seqlens_q,
               bool delta_rule,
               bool gates_are_rates) {
        auto arrays = linear_attention(
            q,
            k,
            v,
            gates,
            betas,
            states,
            {read_slots, write_slots, cu_seqlens_q},
            delta_rule,
            gates_are_rates,
            mx::default_stream(device));
        return nb::make_tuple(arrays[0], arrays[1]);
      },
      "q"_a,
      "k"_a,
      "v"_a,
      "gates"_a,
      "betas"_a,
      "states"_a,
      "read_slots"_a,
      "write_slots"_a,
      "cu_seqlens_q"_a,
      nb::kw_only(),
      "delta_rule"_a,
      "gates_are_rates"_a);
}

} // namespace pomona
