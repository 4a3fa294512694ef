#include "python/operator_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "operators/operators.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona {

namespace {

AttentionOptions options_of(
    float scale,
    std::optional<int> window,
    std::optional<float> softcap,
    bool one_kernel,
    bool decodes,
    bool prefills) {
  return {scale, window.value_or(0), softcap.value_or(0.0f), one_kernel, decodes, prefills};
}

nb::tuple pair(const std::vector<mx::array>& arrays) {
  return nb::make_tuple(arrays[0], arrays[1]);
}

} // namespace

void bind_operators(nb::module_& m, mx::Device device) {
  m.def(
      "reshape_and_cache",
      [device](const mx::array& k,
               const mx::array& v,
               const mx::array& k_cache,
               const mx::array& v_cache,
               const mx::array& slot_mapping) {
        auto stream = mx::default_stream(device);
        return pair(reshape_and_cache(k, v, k_cache, v_cache, slot_mapping, stream));
      },
      "k"_a,
      "v"_a,
      "k_cache"_a,
      "v_cache"_a,
      "slot_mapping"_a);
  m.def(
      "paged_attention",
      [device](const mx::array& q,
               const mx::array& k_cache,
               const mx::array& v_cache,
               const mx::array& block_tables,
               const mx::array& seq_lens,
               const mx::array& cu_seqlens_q,
               float scale,
               std::optional<int> window,
               std::optional<float> softcap,
               const std::optional<mx::array>& sinks,
               bool one_kernel,
               bool decodes,
               bool prefills) {
        return paged_attention(
            q,
            k_cache,
            v_cache,
            block_tables,
            seq_lens,
            cu_seqlens_q,
            options_of(scale, window, softcap, one_kernel, decodes, prefills),
            sinks,
            mx::default_stream(device));
      },
      "q"_a,
      "k_cache"_a,
      "v_cache"_a,
      "block_tables"_a,
      "seq_lens"_a,
      "cu_seqlens_q"_a,
      nb::kw_only(),
      "scale"_a,
      "window"_a = nb::none(),
      "softcap"_a = nb::none(),
      "sinks"_a = nb::none(),
      "one_kernel"_a = false,
      "decodes"_a = false,
      "prefills"_a = false);
  m.def(
      "scatter_paged_attention",
      [device](const mx::array& q,
               const mx::array& k,
               const mx::array& v,
               const mx::array& k_cache,
               const mx::array& v_cache,
               const mx::array& slot_mapping,
               const mx::array& block_tables,
               const mx::array& seq_lens,
               const mx::array& cu_seqlens_q,
               float scale,
               std::optional<int> window,
               std::optional<float> softcap,
               const std::optional<mx::array>& sinks,
               bool one_kernel,
               bool decodes,
               bool prefills) {
        auto arrays = scatter_paged_attention(
            q,
            k,
            v,
            k_cache,
            v_cache,
            slot_mapping,
            block_tables,
            seq_lens,
            cu_seqlens_q,
            options_of(scale, window, softcap, one_kernel, decodes, prefills),
            sinks,
            mx::default_stream(device));
        return nb::make_tuple(arrays[0], arrays[1], arrays[2]);
      },
      "q"_a,
      "k"_a,
      "v"_a,
      "k_cache"_a,
      "v_cache"_a,
      "slot_mapping"_a,
      "block_tables"_a,
      "seq_lens"_a,
      "cu_seqlens_q"_a,
      nb::kw_only(),
      "scale"_a,
      "window"_a = nb::none(),
      "softcap"_a = nb::none(),
      "sinks"_a = nb::none(),
      "one_kernel"_a = false,
      "decodes"_a = false,
      "prefills"_a = false);
}

} // namespace pomona
