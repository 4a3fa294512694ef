#include "guarded_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

namespace metal_emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = size_t{1} << 30;
constexpr size_t kAlignment = 16; // of the widest vector load
constexpr unsigned char kSlack = 0xff; // NaN in every float format

size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

} // namespace

GuardedMemory::GuardedMemory(size_t size, bool at_start)
    : page_bytes_(round_up(size ? size : 1, kPage)), size_(size) {
  void* mapping = mmap(
      nullptr,
      page_bytes_ + 2 * kGuard,
      PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (mapping == MAP_FAILED) {
    throw std::bad_alloc();
  }
  mapping_ = static_cast<char*>(mapping);
  set_writable(true);
  data_ = pages() + (at_start ? 0 : page_bytes_ - round_up(size, kAlignment));
  std::memset(pages(), kSlack, data_ - pages());
  std::memset(data_ + size_, kSlack, pages() + page_bytes_ - (data_ + size_));
}

GuardedMemory::~GuardedMemory() {
  if (mapping_) {
    munmap(mapping_, page_bytes_ + 2 * kGuard);
  }
}

GuardedMemory::GuardedMemory(GuardedMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      page_bytes_(other.page_bytes_),
      data_(other.data_),
      size_(other.size_) {}

GuardedMemory& GuardedMemory::operator=(GuardedMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(page_bytes_, other.page_bytes_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

char* GuardedMemory::pages() const {
  return mapping_ + kGuard;
}

bool GuardedMemory::surrounds(const void* address) const {
  auto* byte = static_cast<const char*>(address);
  return mapping_ && byte >= mapping_ && byte < mapping_ + page_bytes_ + 2 * kGuard;
}

bool GuardedMemory::leaves_bounds(const void* address, size_t size) const {
  auto* first = static_cast<const char*>(address);
  bool touches_pages = first + size > pages() && first < pages() + page_bytes_;
  return touches_pages && (first < data_ || first + size > data_ + size_);
}

void GuardedMemory::set_writable(bool writable) const {
  mprotect(pages(), page_bytes_, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

int64_t GuardedMemory::overwritten_slack() const {
  auto is_written = [](char byte) { return static_cast<unsigned char>(byte) != kSlack; };
  for (const char* byte = data_ - 1; byte >= pages(); byte--) {
    if (is_written(*byte)) {
      return byte - data_;
    }
  }
  for (const char* byte = data_ + size_; byte < pages() + page_bytes_; byte++) {
    if (is_written(*byte)) {
      return byte - data_;
    }
  }
  return 0;
}

} // namespace metal_emulator
