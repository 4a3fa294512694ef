#include "cuda/csrc/row_bindings.h"

#include "cuda/csrc/add_rms_norm.h"
#include "cuda/csrc/fill_in_tokens.h"
#include "cuda/csrc/silu_product.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona::cuda {

void bind_rows(nb::module_& m, mx::Device device) {
  m.def(
      "rms_norm_of_sum",
      // The caller's own array, which becomes another.
      [device](mx::array& x, const mx::array& weight, float epsilon) {
        return rms_norm_of_sum(x, weight, epsilon, mx::default_stream(device));
      },
      nb::arg("x").noconvert(),
      "weight"_a,
      "epsilon"_a);
  m.def(
      "silu_product",
      [device](const mx::array& gate, const mx::array& up) {
        return silu_product(gate, up, mx::default_stream(device));
      },
      "gate"_a,
      "up"_a);
  m.def(
      "fill_in_tokens",
      [device](const mx::array& token_ids, const mx::array& drawn) {
        return fill_in_tokens(token_ids, drawn, mx::default_stream(device));
      },
      "token_ids"_a,
      "drawn"_a);
}

} // namespace pomona::cuda
