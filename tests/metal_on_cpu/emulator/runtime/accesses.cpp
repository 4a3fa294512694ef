#include "accesses.h"

#include <algorithm>
#include <bit>

#include "worker.h"

namespace metal_emulator {
namespace {

constexpr size_t kBits = 64;

} // namespace

Accesses::Accesses(const Dispatch& dispatch, const ThreadgroupMemory& memory)
    : dispatch_(dispatch), memory_(memory) {
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const BoundBuffer& buffer = dispatch.buffers[i];
    if (buffer.data && buffer.track) {
      size_t words = (buffer.size + kBits - 1) / kBits;
      tracked_.push_back({i, buffer.data, buffer.size, std::vector<uint64_t>(words), {}});
    }
  }
}

void Accesses::load(const void* address, size_t size) {
  auto* first = static_cast<const char*>(address);
  for (Tracked& tracked : tracked_) {
    const char* begin = std::max(first, tracked.data);
    const char* end = std::min(first + size, tracked.data + tracked.size);
    for (const char* byte = begin; byte < end; byte++) {
      size_t bit = byte - tracked.data;
      uint64_t& word = tracked.words[bit / kBits];
      if (!word) {
        tracked.touched.push_back(static_cast<uint32_t>(bit / kBits));
      }
      word |= uint64_t{1} << (bit % kBits);
    }
  }
}

void Accesses::store(const void* address, size_t size) {
  auto* first = static_cast<const char*>(address);
  for (Tracked& tracked : tracked_) {
    if (first >= tracked.data && first < tracked.data + tracked.size) {
      tracked.stored += size;
    }
  }
}

bool Accesses::find_out_of_bounds(const void* address, size_t size, OutOfBounds& out) const {
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const BoundBuffer& buffer = dispatch_.buffers[i];
    if (buffer.guard && buffer.guard->leaves_bounds(address, size)) {
      out = {i, buffer.size, static_cast<const char*>(address) - buffer.data};
      return true;
    }
  }
  ThreadgroupMemory::Place place;
  if (memory_.find(address, place) &&
      (place.offset < 0 || place.offset + size > place.size)) {
    out = {-1, place.size, place.offset};
    return true;
  }
  return false;
}

void Accesses::finish_threadgroup(
    std::atomic<uint64_t>* loaded, std::atomic<uint64_t>* stored) {
  for (Tracked& tracked : tracked_) {
    uint64_t bytes = 0;
    for (uint32_t word : tracked.touched) {
      bytes += std::popcount(tracked.words[word]);
      tracked.words[word] = 0;
    }
    tracked.touched.clear();
    loaded[tracked.index] += bytes;
    stored[tracked.index] += tracked.stored;
    tracked.stored = 0;
  }
}

} // namespace metal_emulator

using metal_emulator::Worker;

#define TRACE(bytes)                                                                       \
  extern "C" void __sanitizer_cov_load##bytes(void* address) {                             \
    if (Worker* worker = Worker::current_or_null()) {                                      \
      worker->check_access(address, bytes, false, __builtin_return_address(0));            \
      worker->accesses().load(address, bytes);                                             \
    }                                                                                      \
  }                                                                                        \
  extern "C" void __sanitizer_cov_store##bytes(void* address) {                            \
    if (Worker* worker = Worker::current_or_null()) {                                      \
      worker->check_access(address, bytes, true, __builtin_return_address(0));             \
      worker->accesses().store(address, bytes);                                            \
    }                                                                                      \
  }
TRACE(1)
TRACE(2)
TRACE(4)
TRACE(8)
TRACE(16)
