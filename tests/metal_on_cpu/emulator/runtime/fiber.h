// Fibers: a stack and the registers that a call preserves.
#pragma once

#include <cstddef>

namespace metal_emulator {

class Fiber {
 public:
  Fiber() = default; // the calling thread's own stack, once it switches away
  ~Fiber();
  Fiber(Fiber&& other) noexcept;
  Fiber& operator=(Fiber&&) = delete;

  // The next switch to this fiber calls `entry`, which must not return.
  void prepare(void (*entry)());
  void switch_to(Fiber& next);
  // The thread's own stack takes part under this name.
  void adopt_thread();

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;
  void* sanitizer_fiber_ = nullptr;
  bool owns_sanitizer_fiber_ = false;
};

} // namespace metal_emulator
