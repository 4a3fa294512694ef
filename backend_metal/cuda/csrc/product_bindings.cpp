#include "cuda/csrc/product_bindings.h"

#include "cuda/csrc/few_rows_product.h"
#include "cuda/csrc/quantized_product.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona::cuda {

void bind_products(nb::module_& m, mx::Device device) {
  m.def(
      "few_rows_product",
      [device](const mx::array& x, const mx::array& weights, bool any_rows) {
        return few_rows_product(x, weights, any_rows, mx::default_stream(device));
      },
      "x"_a,
      "weights"_a,
      nb::kw_only(),
      "any_rows"_a = false);
  m.def(
      "quantized_product",
      [device](const mx::array& x,
               const mx::array& weights,
               const mx::array& scales,
               const mx::array& biases,
               int group_size,
               int bits) {
        return quantized_product(
            x, weights, scales, biases, {group_size, bits}, mx::default_stream(device));
      },
      "x"_a,
      "weights"_a,
      "scales"_a,
      "biases"_a,
      nb::kw_only(),
      "group_size"_a,
      "bits"_a);
}

} // namespace pomona::cuda
