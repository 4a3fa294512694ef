// The integers that a step is launched with. A recorded step has them in one buffer, which is filled
// before the first of its kernels begins: so any of them may read there without waiting for the others.
#pragma once

#include <mlx/mlx.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Until `forget_loaded`, in this thread, `ints` is that buffer.
void remember_loaded(const mx::array& ints);
void forget_loaded();

// Whether it lies there.
bool is_loaded(const mx::array& array);

} // namespace pomona::cuda
