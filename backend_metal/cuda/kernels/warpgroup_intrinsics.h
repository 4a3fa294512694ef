// What kernels for compute capability 9.0 ask of the hardware: products of matrices by warpgroups,
// and barriers between those that copy and those that multiply.
//
// Instructions by name: PTX ISA 9.0, sections 9.7.9 (cp.async.bulk), 9.7.13 (bar, mbarrier, fence.proxy) and
// 9.7.15 (wgmma).
// What is passed by shared memory is written through one proxy and read through another, `async`, so
// a fence stands between. Rows that the hardware copies are written and read through the second alone.
#pragma once

#include "intrinsics.h"

// The compiler lets registers be handed around only where it knows what a block begins with.
#undef POMONA_LEAST_BLOCKS
#define POMONA_LEAST_BLOCKS , 1

namespace pomona {

// Of the launch's size, aligned to 1,024 bytes, after which swizzled panels repeat.
inline unsigned char* panel_memory() {
  unsigned char* memory = shared_memory();
  return memory + (1024 - shared_address(memory) % 1024) % 1024;
}

// Of the launch's grid.
inline Position grid_size() {
  return {int(gridDim.x), int(gridDim.y), int(gridDim.z)};
}

// Is counted at a barrier by number, where others wait for it.
inline void pass_by(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

// Of a warpgroup, all of whose warps come here: registers that it does without, or takes.
template <int COUNT>
inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(COUNT));
}
template <int COUNT>
inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(COUNT));
}

inline float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The larger one; the other one if one is NaN.
inline float larger(float a, float b) {
  return fmaxf(a, b);
}

// In shared memory; each time that all have arrived a phase ends.
struct Barrier {
  unsigned long long state;
};

inline void init_barrier(Barrier& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(shared_address(&barrier)), "r"(count)
               : "memory");
}

inline void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :
               : "r"(shared_address(&barrier))
               : "memory");
}

// Once the copies that the thread has started are in shared memory.
inline void arrive_after_copies(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
               :
               : "r"(shared_address(&barrier))
               : "memory");
}

// Until the phase of this parity, 0 for the first one, has ended.
inline void wait(Barrier& barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n"
      :
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
}

// Arrives, and begins to copy a row into shared memory, at multiples of 16 bytes: the phase ends when
// it is there, too. With 0 bytes, only the first.
inline void arrive_with_row(Barrier& barrier, void* to, const void* from, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
  if (bytes > 0) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(shared_address(to)),
          "l"(__cvta_generic_to_global(from)),
          "r"(bytes),
          "r"(shared_address(&barrier))
        : "memory");
  }
}

// Begins to copy such a row out of shared memory.
inline void copy_row_out(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

// Ends the thread's group of such rows.
inline void end_rows_out() {
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

// Until the rows of all of the thread's groups but the latest N have left shared memory.
template <int N>
inline void wait_for_rows_out() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(N) : "memory");
}

// What the thread has seen written to shared memory is there for products, and for copies of rows.
inline void fence_asynchronous() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

// Panels of 64 columns of 2-byte elements, 128 bytes a row, whose 16 bytes at column c of row r lie
// at c ^ r % 8. `stride`: bytes from one panel to the next, for the columns of `right_rows` alone.
inline unsigned long long panel(const void* first, int stride) {
  return 1ull << 62 | 1024ull / 16 << 32 | (unsigned long long)(stride / 16) << 16 |
      shared_address(first) / 16;
}

// What panels begin at, some bytes on.
inline unsigned long long advanced(unsigned long long panel, int bytes) {
  return panel + bytes / 16;
}

// Products of a warpgroup, asynchronous: between start_products and wait_for_products nobody touches
// the registers that they use. A lane's sums are those of multiply_accumulate, 16 rows a warp.
inline void start_products() {
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

// All but the latest N that have ended.
template <int N>
inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}

// Keeps what computes them before this from being moved behind it, and what reads them after it from
// being moved before it: the compiler knows of no order of registers and waits.
template <int N>
inline void hold(float (&sums)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; j++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      asm volatile("" : "+f"(sums[j][e]) : : "memory");
    }
  }
}

// columns: sums [64, N] = left [64, 16] * right [N, 16]^T, added to what they are if `adds`
// rows: sums [64, N] += left [64, 16] * right [16, N], left as in multiply_accumulate
template <typename T, int N>
struct Products;

#define POMONA_REGISTERS_64                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define POMONA_REGISTERS_80 POMONA_REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define POMONA_REGISTERS_96 POMONA_REGISTERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define POMONA_REGISTERS_112 POMONA_REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define POMONA_REGISTERS_128 POMONA_REGISTERS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"

#define POMONA_SUM(j) "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])
#define POMONA_SUMS_64                                            \
  POMONA_SUM(0), POMONA_SUM(1), POMONA_SUM(2), POMONA_SUM(3),     \
      POMONA_SUM(4), POMONA_SUM(5), POMONA_SUM(6), POMONA_SUM(7)
#define POMONA_SUMS_80 POMONA_SUMS_64, POMONA_SUM(8), POMONA_SUM(9)
#define POMONA_SUMS_96 POMONA_SUMS_80, POMONA_SUM(10), POMONA_SUM(11)
#define POMONA_SUMS_112 POMONA_SUMS_96, POMONA_SUM(12), POMONA_SUM(13)
#define POMONA_SUMS_128 POMONA_SUMS_112, POMONA_SUM(14), POMONA_SUM(15)

// A, B, ...: the numbers of the operands behind N / 2 sums.
#define POMONA_PRODUCTS(T, TYPE, N, A, B, C, D, E, F)                                          \
  template <>                                                                                  \
  struct Products<T, N> {                                                                      \
    static void columns(                                                                       \
        float (*sums)[4], unsigned long long left, unsigned long long right, bool adds) {      \
      asm volatile(                                                                            \
          "{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #C ", 0;\n"                               \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " "                  \
          "{" POMONA_REGISTERS_##N "}, %" #A ", %" #B ", adds, 1, 1, 0, 0;\n}\n"               \
          : POMONA_SUMS_##N                                                                    \
          : "l"(left), "l"(right), "r"(int(adds)));                                            \
    }                                                                                          \
    static void rows(                                                                          \
        float (*sums)[4], const unsigned (&left)[4], unsigned long long right) {               \
      asm volatile(                                                                            \
          "{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #F ", 0;\n"                               \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " "                  \
          "{" POMONA_REGISTERS_##N "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E             \
          ", adds, 1, 1, 1;\n}\n"                                                              \
          : POMONA_SUMS_##N                                                                    \
          : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(1));       \
    }                                                                                          \
  };

#define POMONA_PRODUCTS_OF(T, TYPE)                       \
  POMONA_PRODUCTS(T, TYPE, 64, 32, 33, 34, 35, 36, 37)    \
  POMONA_PRODUCTS(T, TYPE, 80, 40, 41, 42, 43, 44, 45)    \
  POMONA_PRODUCTS(T, TYPE, 96, 48, 49, 50, 51, 52, 53)    \
  POMONA_PRODUCTS(T, TYPE, 112, 56, 57, 58, 59, 60, 61)   \
  POMONA_PRODUCTS(T, TYPE, 128, 64, 65, 66, 67, 68, 69)

POMONA_PRODUCTS_OF(half, "f16")
POMONA_PRODUCTS_OF(bfloat, "bf16")

} // namespace pomona
