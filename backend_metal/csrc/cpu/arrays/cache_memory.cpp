#include "cpu/arrays/cache_memory.h"

#include <mlx/allocator.h>

#include <cstdint>
#include <cstring>
#include <span>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pomona::cpu {

namespace {

constexpr size_t kLine = 64; // of a cache

size_t whole_lines(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

constexpr size_t kHugePage = 2 << 20;

// The huge pages that lie within the memory; none on other systems.
std::span<char> huge_pages([[maybe_unused]] char* memory, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePage;
  if (before < bytes) {
    return {memory + before, (bytes - before) / kHugePage * kHugePage};
  }
#endif
  return {memory, size_t(0)};
}

// Before the memory is first touched; a hint, which the system may not follow.
void ask_for_huge_pages([[maybe_unused]] char* memory, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  auto pages = huge_pages(memory, bytes);
  madvise(pages.data(), pages.size(), MADV_HUGEPAGE);
#endif
}

// Linux zeroes a page when it is first touched: a cache of 10 GiB would take 10 s at once.
void clear(char* memory, size_t bytes) {
  auto pages = huge_pages(memory, bytes);
#ifdef __linux__
  if (madvise(pages.data(), pages.size(), MADV_DONTNEED) != 0) {
    pages = {memory, size_t(0)};
  }
#endif
  std::memset(memory, 0, pages.data() - memory);
  char* rest = pages.data() + pages.size();
  std::memset(rest, 0, memory + bytes - rest);
}

} // namespace

mlx::core::array zeros(mlx::core::Shape shape, mlx::core::Dtype dtype) {
  size_t bytes = size_of(dtype);
  for (auto dim : shape) {
    bytes *= dim;
  }
  mlx::core::array out(mlx::core::allocator::malloc(bytes), std::move(shape), dtype);
  ask_for_huge_pages(out.data<char>(), bytes);
  clear(out.data<char>(), bytes);
  return out;
}

std::vector<mlx::core::array> lay_together(
    const std::vector<mlx::core::array>& arrays, mlx::core::Stream stream) {
  std::vector<mlx::core::array> dense;
  size_t bytes = kLine;
  for (const auto& array : arrays) {
    dense.push_back(mlx::core::contiguous(array, false, stream));
    bytes += whole_lines(array.nbytes());
  }
  mlx::core::eval(dense);
  // By lines, since a dimension is an int and a matrix may have more bytes than that.
  mlx::core::array memory(
      mlx::core::allocator::malloc(bytes),
      {static_cast<int>(bytes / kLine), static_cast<int>(kLine)},
      mlx::core::uint8);
  ask_for_huge_pages(memory.data<char>(), bytes);
  size_t offset = -reinterpret_cast<uintptr_t>(memory.data<char>()) % kLine;
  std::vector<mlx::core::array> laid;
  for (const auto& array : dense) {
    std::memcpy(memory.data<char>() + offset, array.data<char>(), array.nbytes());
    mlx::core::array out(array.shape(), array.dtype(), nullptr, {});
    out.copy_shared_buffer(
        memory, array.strides(), array.flags(), array.data_size(), offset / array.itemsize());
    out.set_status(mlx::core::array::Status::available);
    laid.push_back(std::move(out));
    offset += whole_lines(array.nbytes());
  }
  return laid;
}

} // namespace pomona::cpu
