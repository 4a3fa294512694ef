#include "cpu/cache_memory.h"

#include <mlx/allocator.h>

#include <cstdint>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pomona::cpu {

namespace {

// Before the memory is first touched; a hint, which the system may not follow.
void ask_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kHugePage = 2 << 20;
  auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + bytes;
  begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
  end = end / kHugePage * kHugePage;
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
#endif
}

} // namespace

mlx::core::array zeros(mlx::core::Shape shape, mlx::core::Dtype dtype) {
  size_t bytes = size_of(dtype);
  for (auto dim : shape) {
    bytes *= dim;
  }
  mlx::core::array out(mlx::core::allocator::malloc(bytes), std::move(shape), dtype);
  ask_for_huge_pages(out.data<char>(), bytes);
  std::memset(out.data<char>(), 0, bytes);
  return out;
}

} // namespace pomona::cpu
