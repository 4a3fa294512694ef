// The shipped warpgroup_intrinsics.h, for a CPU. Products take place when they are waited for, copies
// when somebody waits at their barrier, and no sooner.
#pragma once

#include "intrinsics.h"

namespace pomona {

using cuda_on_cpu::Barrier;

inline unsigned char* panel_memory() {
  return shared_memory();
}

inline Position grid_size() {
  auto& size = current_block().grid();
  return {size[0], size[1], size[2]};
}

inline void pass_by(int barrier, int threads) {
  current_block().meet_some(barrier, threads, false);
}

template <int COUNT>
inline void give_registers() {
  static_assert(COUNT % 8 == 0 && COUNT >= 24, "what setmaxnreg takes");
  sync_warp();
}
template <int COUNT>
inline void take_registers() {
  static_assert(COUNT % 8 == 0 && COUNT <= 256, "what setmaxnreg takes");
  sync_warp();
}

inline float reciprocal(float x) {
  return 1.0f / x;
}

inline float larger(float a, float b) {
  return std::fmax(a, b);
}

inline void init_barrier(Barrier& barrier, int count) {
  barrier = {uint16_t(count), uint16_t(count), 0};
}
inline void arrive(Barrier& barrier) {
  current_block().arrive(barrier);
}
inline void arrive_after_copies(Barrier& barrier) {
  current_block().arrive_after_copies(barrier);
}
inline void wait(Barrier& barrier, int parity) {
  current_block().wait(barrier, parity);
}
inline void arrive_with_row(Barrier& barrier, void* to, const void* from, int bytes) {
  current_block().arrive_with_row(barrier, to, from, bytes);
}
inline void copy_row_out(void* to, const void* from, int bytes) {
  current_block().copy_row_out(to, from, bytes);
}
inline void end_rows_out() {
  current_block().end_rows_out();
}
template <int N>
inline void wait_for_rows_out() {
  current_block().wait_for_rows_out(N);
}
inline void fence_asynchronous() {
  current_block().fence();
}

inline unsigned long long panel(const void* first, int stride) {
  auto start = static_cast<const unsigned char*>(first) - current_block().shared;
  return 1ull << 62 | 1024ull / 16 << 32 | (unsigned long long)(stride / 16) << 16 | start / 16;
}
inline unsigned long long advanced(unsigned long long panel, int bytes) {
  return panel + bytes / 16;
}

inline void start_products() {}
inline void end_products() {
  current_block().end_products();
}
template <int N>
inline void wait_for_products() {
  current_block().wait_for_products(N);
}
template <int N>
inline void hold(float (&)[N][4]) {}

template <typename T, int N>
struct Products {
  static float element(uint16_t bits) {
    return to_float(T{bits});
  }
  static void columns(
      float (*sums)[4], unsigned long long left, unsigned long long right, bool adds) {
    current_block().start_product({sums, N, adds, nullptr, left, right, false, &element, {}});
  }
  static void rows(float (*sums)[4], const unsigned (&left)[4], unsigned long long right) {
    current_block().start_product({sums, N, true, left, 0, right, true, &element, {}});
  }
};

} // namespace pomona
