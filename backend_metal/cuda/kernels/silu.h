// silu(gate) * up, of one element, before it is rounded.
//
// Rounds where MLX's compiled kernel does, which is behind every operation.
#pragma once

#include <metal_stdlib>

#include "rounding.h"

namespace pomona {

template <typename T>
inline float silu_product_of(float gate, float up) {
  const float power = rounded_to<T>(expf(fabsf(gate)));
  const float rest = rounded_to<T>(1.0f / rounded_to<T>(1.0f + power));
  const float sigmoid = gate < 0.0f ? rest : rounded_to<T>(1.0f - rest);
  return rounded_to<T>(gate * sigmoid) * up;
}

} // namespace pomona
