// One float as an element, rounded to nearest, ties to even.
#pragma once

#include "intrinsics.h"

namespace pomona {

template <typename T>
inline T from_float(float value) {
  return T{static_cast<unsigned short>(pack<T>(value, 0.0f))};
}
template <>
inline float from_float<float>(float value) {
  return value;
}

template <typename T>
inline float rounded_to(float value) {
  return to_float(from_float<T>(value));
}

} // namespace pomona
