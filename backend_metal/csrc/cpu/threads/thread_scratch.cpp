#include "cpu/threads/thread_scratch.h"

#include <memory>
#include <new>

namespace pomona::cpu {

namespace {

constexpr std::align_val_t kCacheLine{64};

struct Free {
  void operator()(float* memory) const {
    ::operator delete(memory, kCacheLine);
  }
};

} // namespace

float* thread_scratch(int64_t num_floats) {
  thread_local std::unique_ptr<float[], Free> memory;
  thread_local int64_t capacity = 0;
  if (capacity < num_floats) {
    memory.reset(static_cast<float*>(::operator new(num_floats * sizeof(float), kCacheLine)));
    capacity = num_floats;
  }
  return memory.get();
}

} // namespace pomona::cpu
