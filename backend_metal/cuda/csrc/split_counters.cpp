#include "cuda/csrc/split_counters.h"

#include <array>
#include <map>
#include <mutex>
#include <span>

#include "cuda/csrc/copy_staged.h"
#include "cuda/csrc/memory.h"

namespace pomona::cuda {

const mx::array& split_counters(mx::Stream stream, mx::cu::CommandEncoder& encoder) {
  static std::mutex mutex;
  static auto* arrays = new std::map<int, mx::array>;
  std::lock_guard lock(mutex);
  auto found = arrays->find(stream.index);
  if (found == arrays->end()) {
    mx::array zeros({kWorkCounter + 1}, mx::uint32, nullptr, {});
    allocate(zeros, encoder);
    std::array<unsigned, kWorkCounter + 1> values{};
    copy_staged(encoder, *Staged::copy_of(std::as_bytes(std::span(values))), zeros);
    found = arrays->emplace(stream.index, std::move(zeros)).first;
  }
  return found->second;
}

} // namespace pomona::cuda
