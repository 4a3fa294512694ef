// Memory that a task works in.
#pragma once

#include <cstdint>

namespace pomona::cpu {

// At least so many floats, at a cache line's start. Grows, and stays with its thread: an allocation a
// task would be most of a short one.
float* thread_scratch(int64_t num_floats);

} // namespace pomona::cpu
