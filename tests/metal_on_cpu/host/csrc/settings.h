// How dispatches run; read when a primitive is evaluated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pomona::metal_on_cpu {

struct Settings {
  uint32_t seed = 0; // the schedule of a threadgroup's threads: see metal_emulator.h
  int workers = 2;
  // Buffers up to this size run as guarded copies, so that no access outside of them goes unseen.
  size_t max_guarded_bytes = size_t(64) << 20;
  bool guard_at_start = false; // else at the end of a buffer
  // Dispatches that no barrier separates run last to first: a GPU promises them no order.
  bool reverse_unordered = false;
  bool track_loads = false; // libraries compiled from now on
};

inline Settings& settings() {
  static Settings shared;
  return shared;
}

} // namespace pomona::metal_on_cpu
