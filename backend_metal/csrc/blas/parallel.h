#pragma once

#include <cstddef>

namespace pomona::blas {

// A loop body: `run(context, index)` for every index, in any order and on any thread.
struct Loop {
  void (*run)(const void* context, std::ptrdiff_t index);
  const void* context;
};

// Runs `loop` for 0 <= index < count on the calling thread and the idle workers; returns when all
// are done. Nested and concurrent calls run on their own thread alone.
void parallel_for(std::ptrdiff_t count, const Loop& loop);

template <typename Body>
void parallel_for(std::ptrdiff_t count, const Body& body) {
  parallel_for(
      count,
      Loop{
          [](const void* context, std::ptrdiff_t index) {
            (*static_cast<const Body*>(context))(index);
          },
          &body});
}

// Threads that share a loop, the caller included: at least 1.
int num_threads();
void set_num_threads(int count);

} // namespace pomona::blas
