// What the kernels that draw tokens ask of a threadgroup.
#pragma once

#include <metal_stdlib>

namespace pomona {

// A word that all threads who share its memory may add to at the same time.
using Counter = metal::atomic_uint;

inline uint add_to_counter(threadgroup Counter* counter, uint value) {
  return metal::atomic_fetch_add_explicit(counter, value, metal::memory_order_relaxed);
}

inline uint get_counter(threadgroup Counter* counter) {
  return metal::atomic_load_explicit(counter, metal::memory_order_relaxed);
}

inline void set_counter(threadgroup Counter* counter, uint value) {
  metal::atomic_store_explicit(counter, value, metal::memory_order_relaxed);
}

inline uint add_to_counter(device Counter* counter, uint value) {
  return metal::atomic_fetch_add_explicit(counter, value, metal::memory_order_relaxed);
}

inline uint get_counter(const device Counter* counter) {
  return metal::atomic_load_explicit(counter, metal::memory_order_relaxed);
}

inline void set_counter(device Counter* counter, uint value) {
  metal::atomic_store_explicit(counter, value, metal::memory_order_relaxed);
}

// Until all threads are here; what they have written before, every one of them sees.
inline void sync_group() {
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
}

template <typename T>
inline float to_float(T element) {
  return float(element);
}

} // namespace pomona
