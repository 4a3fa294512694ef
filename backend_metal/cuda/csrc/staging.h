// Memory of the host that the GPU copies from, while the host writes what comes next.
//
// Memory that host and GPU share moves to and fro, a page at a time, whenever one of them touches what
// the other has written. What the host writes for every step is copied instead.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <span>

namespace pomona::cuda {

// Bytes on their way to the GPU.
class Staged {
 public:
  // Copies them at once, to memory that nobody reads any more.
  static std::shared_ptr<Staged> copy_of(std::span<const std::byte> bytes);
  ~Staged();
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  // Where the GPU finds them, too.
  const void* memory() const;
  size_t num_bytes() const {
    return num_bytes_;
  }

  // All that reads them is in the stream; `this` may be dropped meanwhile.
  void end_reading(CUstream stream);

  struct Slot;

 private:
  Staged(Slot* slot, size_t num_bytes) : slot_(slot), num_bytes_(num_bytes) {}

  Slot* slot_;
  size_t num_bytes_;
};

} // namespace pomona::cuda
