// The three functions that MLX's Linux build takes from a BLAS. Loaded with RTLD_GLOBAL before MLX
// calls the first of them, these definitions win over the reference BLAS that MLX ships. OpenBLAS,
// under the prefix of PyPI's scipy-openblas32, must be loaded with RTLD_GLOBAL before this library.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "cpu/gemm/gemm.h"
#include "cpu/threads/thread_pool.h"

extern "C" {

enum CblasOrder { kRowMajor = 101, kColumnMajor = 102 };
enum CblasTranspose { kNoTranspose = 111, kTranspose = 112, kConjugateTranspose = 113 };

#define DECLARE_GEMM(name, scalar, element) \
  void name(                                \
      CblasOrder order,                     \
      CblasTranspose transpose_a,           \
      CblasTranspose transpose_b,           \
      int m,                                \
      int n,                                \
      int k,                                \
      scalar alpha,                         \
      const element* a,                     \
      int lda,                              \
      const element* b,                     \
      int ldb,                              \
      scalar beta,                          \
      element* c,                           \
      int ldc)

DECLARE_GEMM(scipy_cblas_sgemm, float, float);
DECLARE_GEMM(scipy_cblas_dgemm, double, double);
DECLARE_GEMM(scipy_cblas_cgemm, const void*, void);
void scipy_openblas_set_num_threads(int count);

} // extern "C"

namespace pomona::gemm {
namespace {

std::atomic<long> calls{0};
std::atomic<bool> forward_sgemm{false};

Matrix operand(const float* data, bool transposed, int ld) {
  return transposed ? Matrix{data, 1, ld} : Matrix{data, ld, 1};
}

} // namespace
} // namespace pomona::gemm

using namespace pomona::gemm;

#pragma GCC visibility push(default)
extern "C" {

DECLARE_GEMM(cblas_sgemm, float, float) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (forward_sgemm.load(std::memory_order_relaxed) || kernel_name() == nullptr) {
    return scipy_cblas_sgemm(
        order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  if (order == kColumnMajor) {
    // The same memory, read by rows, holds the transposed matrices.
    std::swap(a, b);
    std::swap(lda, ldb);
    std::swap(transpose_a, transpose_b);
    std::swap(m, n);
  }
  sgemm(
      m,
      n,
      k,
      alpha,
      operand(a, transpose_a != kNoTranspose, lda),
      operand(b, transpose_b != kNoTranspose, ldb),
      beta,
      c,
      ldc);
}

DECLARE_GEMM(cblas_dgemm, double, double) {
  calls.fetch_add(1, std::memory_order_relaxed);
  scipy_cblas_dgemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

DECLARE_GEMM(cblas_cgemm, const void*, void) {
  calls.fetch_add(1, std::memory_order_relaxed);
  scipy_cblas_cgemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// Calls of the three so far: whether MLX took them.
long pomona_blas_calls() {
  return calls.load(std::memory_order_relaxed);
}

const char* pomona_blas_kernel() {
  return forward_sgemm || kernel_name() == nullptr ? "openblas" : kernel_name();
}

// 0 if this processor has no kernel of that name.
int pomona_blas_set_kernel(const char* name) {
  return set_kernel(name);
}

int pomona_blas_num_threads() {
  return pomona::cpu::ThreadPool::shared().num_threads();
}

void pomona_blas_set_num_threads(int count) {
  pomona::cpu::ThreadPool::shared().resize(count);
  scipy_openblas_set_num_threads(count);
}

// Leave float32 products to OpenBLAS too.
void pomona_blas_forward_sgemm(int forward) {
  forward_sgemm = forward != 0;
}

} // extern "C"
#pragma GCC visibility pop
