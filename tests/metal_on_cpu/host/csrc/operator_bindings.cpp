#include "operator_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "operators.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona::metal_on_cpu {

namespace {

using Array = const mx::array&;

mx::Stream stream() {
  return mx::default_stream(mx::Device::cpu);
}

nb::tuple bound_reshape_and_cache(Array k, Array v, Array k_cache, Array v_cache, Array slots) {
  auto caches = reshape_and_cache(k, v, k_cache, v_cache, slots, stream());
  return nb::make_tuple(caches[0], caches[1]);
}

mx::array bound_paged_attention(
    Array q,
    Array k_cache,
    Array v_cache,
    Array block_tables,
    Array seq_lens,
    Array cu_seqlens_q,
    float scale,
    std::optional<int> window,
    std::optional<float> softcap,
    const std::optional<mx::array>& sinks) {
  AttentionOptions options{scale, window.value_or(0), softcap.value_or(0.0f)};
  return paged_attention(
      q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q, options, sinks, stream());
}

nb::tuple bound_scatter_paged_attention(
    Array q,
    Array k,
    Array v,
    Array k_cache,
    Array v_cache,
    Array slot_mapping,
    Array block_tables,
    Array seq_lens,
    Array cu_seqlens_q,
    float scale,
    std::optional<int> window,
    std::optional<float> softcap,
    const std::optional<mx::array>& sinks) {
  AttentionOptions options{scale, window.value_or(0), softcap.value_or(0.0f)};
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
      options,
      sinks,
      stream());
  return nb::make_tuple(arrays[0], arrays[1], arrays[2]);
}

} // namespace

void bind_operators(nb::module_& m) {
  m.def(
      "reshape_and_cache",
      &bound_reshape_and_cache,
      "k"_a,
      "v"_a,
      "k_cache"_a,
      "v_cache"_a,
      "slot_mapping"_a);
  m.def(
      "paged_attention",
      &bound_paged_attention,
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
      "sinks"_a = nb::none());
  m.def(
      "scatter_paged_attention",
      &bound_scatter_paged_attention,
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
      "sinks"_a = nb::none());
  m.def(
      "copy_blocks",
      [](Array cache, Array sources, Array destinations) {
        return copy_blocks(cache, sources, destinations, stream());
      },
      "cache"_a,
      "sources"_a,
      "destinations"_a);
}

} // namespace pomona::metal_on_cpu
