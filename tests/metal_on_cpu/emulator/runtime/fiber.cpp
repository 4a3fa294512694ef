#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#ifdef METAL_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#ifndef __x86_64__
#error "switch_stacks is written for x86-64"
#endif

extern "C" void metal_emulator_switch_stacks(void** save, void* next);

asm(R"(
.text
.globl metal_emulator_switch_stacks
.hidden metal_emulator_switch_stacks
.type metal_emulator_switch_stacks, @function
metal_emulator_switch_stacks:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size metal_emulator_switch_stacks, . - metal_emulator_switch_stacks
)");

namespace metal_emulator {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kStackGuard = 4096;
constexpr int kSavedRegisters = 6;

} // namespace

Fiber::~Fiber() {
  if (stack_) {
    munmap(stack_ - kStackGuard, kStackBytes + kStackGuard);
  }
#ifdef METAL_EMULATOR_TSAN
  if (owns_sanitizer_fiber_) {
    __tsan_destroy_fiber(sanitizer_fiber_);
  }
#endif
}

Fiber::Fiber(Fiber&& other) noexcept
    : stack_pointer_(std::exchange(other.stack_pointer_, nullptr)),
      stack_(std::exchange(other.stack_, nullptr)),
      sanitizer_fiber_(std::exchange(other.sanitizer_fiber_, nullptr)),
      owns_sanitizer_fiber_(std::exchange(other.owns_sanitizer_fiber_, false)) {}

void Fiber::prepare(void (*entry)()) {
  if (!stack_) {
    void* mapping = mmap(
        nullptr,
        kStackBytes + kStackGuard,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
    if (mapping == MAP_FAILED) {
      throw std::bad_alloc();
    }
    mprotect(mapping, kStackGuard, PROT_NONE);
    stack_ = static_cast<char*>(mapping) + kStackGuard;
#ifdef METAL_EMULATOR_TSAN
    sanitizer_fiber_ = __tsan_create_fiber(0);
    owns_sanitizer_fiber_ = true;
#endif
  }
  // At entry the ABI wants the stack pointer 8 past a multiple of 16, as after a call.
  auto** top = reinterpret_cast<void**>(stack_ + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; i++) {
    *--top = nullptr;
  }
  stack_pointer_ = top;
}

void Fiber::switch_to(Fiber& next) {
  if (this == &next) {
    return;
  }
#ifdef METAL_EMULATOR_TSAN
  __tsan_switch_to_fiber(next.sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  metal_emulator_switch_stacks(&stack_pointer_, next.stack_pointer_);
}

void Fiber::adopt_thread() {
#ifdef METAL_EMULATOR_TSAN
  sanitizer_fiber_ = __tsan_get_current_fiber();
#endif
}

} // namespace metal_emulator
