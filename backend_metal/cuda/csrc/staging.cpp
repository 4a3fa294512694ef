#include "cuda/csrc/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "cuda/csrc/errors.h"

namespace pomona::cuda {

struct Staged::Slot {
  size_t num_bytes = 0;
  void* memory = nullptr;
  CUevent read = nullptr; // behind the latest that reads it
};

namespace {

constexpr size_t kLeastBytes = 1024;

bool is_read(const Staged::Slot& slot) {
  auto result = cuEventQuery(slot.read);
  if (result == CUDA_ERROR_NOT_READY) {
    return false;
  }
  check(result, "cuEventQuery");
  return true;
}

// Slots that nobody writes, by size; of each the one that was given back first is taken first, since
// the GPU is most likely done with it. Nobody waits for the GPU, which may come to what a step reads last
// only when the next one is long made: where it is not done, there is one slot more.
class Slots {
 public:
  Staged::Slot* take(size_t num_bytes) {
    num_bytes = std::bit_ceil(std::max(num_bytes, kLeastBytes));
    if (auto* slot = kept(num_bytes)) {
      return slot;
    }
    auto slot = std::make_unique<Staged::Slot>();
    slot->num_bytes = num_bytes;
    check(cuMemHostAlloc(&slot->memory, num_bytes, 0), "cuMemHostAlloc");
    check(cuEventCreate(&slot->read, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    return slot.release();
  }

  void give_back(Staged::Slot* slot) {
    std::lock_guard lock(mutex_);
    kept_[slot->num_bytes].push_back(slot);
  }

 private:
  Staged::Slot* kept(size_t num_bytes) {
    std::lock_guard lock(mutex_);
    auto& slots = kept_[num_bytes];
    if (slots.empty() || !is_read(*slots.front())) {
      return nullptr;
    }
    auto* slot = slots.front();
    slots.pop_front();
    return slot;
  }

  std::mutex mutex_;
  std::map<size_t, std::deque<Staged::Slot*>> kept_;
};

// Never ends: arrays may, after all else.
Slots& slots() {
  static auto* all = new Slots;
  return *all;
}

} // namespace

std::shared_ptr<Staged> Staged::copy_of(std::span<const std::byte> bytes) {
  std::shared_ptr<Staged> staged(new Staged(slots().take(bytes.size()), bytes.size()));
  std::memcpy(staged->slot_->memory, bytes.data(), bytes.size());
  return staged;
}

Staged::~Staged() {
  slots().give_back(slot_);
}

const void* Staged::memory() const {
  return slot_->memory;
}

void Staged::end_reading(CUstream stream) {
  check(cuEventRecord(slot_->read, stream), "cuEventRecord");
}

} // namespace pomona::cuda
