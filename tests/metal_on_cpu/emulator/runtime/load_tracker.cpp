#include "load_tracker.h"

#include <algorithm>
#include <bit>

#include "worker.h"

namespace metal_emulator {
namespace {

constexpr size_t kBits = 64;

} // namespace

LoadTracker::LoadTracker(const Dispatch& dispatch) {
  for (int i = 0; i < METAL_EMULATOR_MAX_BUFFERS; i++) {
    const BoundBuffer& buffer = dispatch.buffers[i];
    if (buffer.track) {
      size_t words = (buffer.size + kBits - 1) / kBits;
      ranges_.push_back({i, buffer.data, buffer.size, std::vector<uint64_t>(words), {}});
    }
  }
}

void LoadTracker::record(const void* address, size_t size) {
  auto* first = static_cast<const char*>(address);
  for (Range& range : ranges_) {
    size_t begin = std::max(first, range.data) - range.data;
    size_t end = std::min(first + size, range.data + range.size) - range.data;
    if (first + size <= range.data || first >= range.data + range.size) {
      continue;
    }
    for (size_t byte = begin; byte < end; byte++) {
      uint64_t& word = range.words[byte / kBits];
      if (!word) {
        range.touched.push_back(static_cast<uint32_t>(byte / kBits));
      }
      word |= uint64_t{1} << (byte % kBits);
    }
  }
}

void LoadTracker::finish_threadgroup(std::atomic<uint64_t>* loaded) {
  for (Range& range : ranges_) {
    uint64_t bytes = 0;
    for (uint32_t word : range.touched) {
      bytes += std::popcount(range.words[word]);
      range.words[word] = 0;
    }
    range.touched.clear();
    loaded[range.index] += bytes;
  }
}

} // namespace metal_emulator

#define TRACE_LOAD(bytes)                                                     \
  extern "C" void __sanitizer_cov_load##bytes(void* address) {                \
    if (auto* worker = metal_emulator::Worker::current_or_null()) {           \
      worker->loads().record(address, bytes);                                 \
    }                                                                         \
  }
TRACE_LOAD(1)
TRACE_LOAD(2)
TRACE_LOAD(4)
TRACE_LOAD(8)
TRACE_LOAD(16)
