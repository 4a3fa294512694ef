#include "dispatch.h"

namespace pomona::metal_on_cpu {

namespace {

bool same(const std::weak_ptr<mx::array::Data>& a, const std::weak_ptr<mx::array::Data>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

} // namespace

void BufferSet::insert(const Memory& memory) {
  buffers_[memory.id] = memory.owner;
}

void BufferSet::insert(const BufferSet& other) {
  for (const auto& [id, owner] : other.buffers_) {
    buffers_[id] = owner;
  }
}

bool BufferSet::contains(const Memory& memory) const {
  auto it = buffers_.find(memory.id);
  return it != buffers_.end() && same(it->second, memory.owner);
}

const std::weak_ptr<mx::array::Data>* BufferSet::find(const void* id) const {
  auto it = buffers_.find(id);
  return it == buffers_.end() ? nullptr : &it->second;
}

void BufferSet::clear() {
  buffers_.clear();
}

void BufferSet::swap(BufferSet& other) {
  buffers_.swap(other.buffers_);
}

} // namespace pomona::metal_on_cpu
