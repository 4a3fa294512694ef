// Memory whose neighbourhood is unmapped, so that an access outside of it stops the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metal_emulator {

class GuardedMemory {
 public:
  GuardedMemory() = default;
  GuardedMemory(size_t size, bool at_start);
  ~GuardedMemory();
  GuardedMemory(GuardedMemory&& other) noexcept;
  GuardedMemory& operator=(GuardedMemory&& other) noexcept;

  char* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }
  // Whether `address` lies in the memory or in the unmapped addresses around it.
  bool surrounds(const void* address) const;
  // Whether an access to the memory's pages touches a byte outside of the memory.
  bool leaves_bounds(const void* address, size_t size) const;
  void set_writable(bool writable) const;
  // Offset from data() of a byte of the slack that was written, or 0.
  int64_t overwritten_slack() const;

 private:
  char* pages() const;

  char* mapping_ = nullptr;
  size_t page_bytes_ = 0;
  char* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace metal_emulator
