// Inputs that are parts of a larger array, such as one of several projections that were computed as
// one product: read where they lie, as runs of elements, rather than copied.
#pragma once

#include <mlx/backend/cpu/encoder.h>
#include <mlx/mlx.h>

namespace pomona {

namespace mx = mlx::core;

// float32 elements; from the start of a run to that of the next it is `stride` elements.
struct Runs {
  const float* data;
  int64_t count;
  int64_t length;
  int64_t stride;

  const float* operator[](int64_t index) const {
    return data + index * stride;
  }
};

// The most elements of `in`, counted from its last dimension on, that lie one behind another.
int64_t run_length(const mx::array& in);

// `in` as runs of `length` elements, a divisor of its size; of a copy where its strides allow none.
Runs runs_of(const mx::array& in, int64_t length, mx::cpu::CommandEncoder& encoder);

} // namespace pomona
