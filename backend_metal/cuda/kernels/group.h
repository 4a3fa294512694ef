// What kernels that both GPUs share ask of a threadgroup, which is a block here; see shaders/sampling/group.h.
#pragma once

#include "intrinsics.h"

// The bits of a float.
template <typename To>
inline To as_type(float x) {
  return static_cast<To>(__float_as_uint(x));
}

namespace pomona {

using Counter = unsigned;

inline unsigned add_to_counter(Counter* counter, unsigned value) {
  return add_shared(counter, value);
}

inline unsigned get_counter(const Counter* counter) {
  return *counter;
}

inline void set_counter(Counter* counter, unsigned value) {
  *counter = value;
}

inline void sync_group() {
  sync_block();
}

} // namespace pomona
