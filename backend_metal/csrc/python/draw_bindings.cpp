#include "python/draw_bindings.h"

#include "operators/draw_tokens.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

void bind_draws(nb::module_& m, mx::Device device) {
  m.def(
      "draw_tokens",
      [device](const mx::array& logits,
               const mx::array& options,
               const mx::array& masks,
               const mx::array& counts,
               const mx::array& bias_ids,
               const mx::array& biases,
               bool cuts) {
        return draw_tokens(
            logits, options, {masks, counts, bias_ids, biases}, cuts, mx::default_stream(device));
      },
      "logits"_a,
      "options"_a,
      "masks"_a,
      "counts"_a,
      "bias_ids"_a,
      "biases"_a,
      nb::kw_only(),
      "cuts"_a);
}

} // namespace pomona
