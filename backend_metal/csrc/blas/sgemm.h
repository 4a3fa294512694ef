// Matrix products of float32 whose rows do not depend on their company.
//
// Element (m, n) is one chain of fused multiply-adds over k, cut at multiples of kDepth: the same
// bits for any number of rows or columns, any position among them and any number of threads. A BLAS
// promises none of that: it picks kernels by shape. This is what lets a request get the same tokens
// alone and in a batch. The right-hand side is read where it lies, not packed first, so the few
// rows of a decode step run at the speed of memory.
#pragma once

#include <cstddef>

namespace pomona::blas {

// Element (i, j) is data[i * row_stride + j * column_stride]; strides in elements.
struct Matrix {
  const float* data;
  std::ptrdiff_t row_stride;
  std::ptrdiff_t column_stride;
};

// c = alpha * a b + beta * c, with a [m, k], b [k, n] and c [m, n] of row stride `ldc`. One of b's
// strides is 1. As in BLAS, beta = 0 overwrites whatever c held.
void sgemm(
    std::ptrdiff_t m,
    std::ptrdiff_t n,
    std::ptrdiff_t k,
    float alpha,
    const Matrix& a,
    const Matrix& b,
    float beta,
    float* c,
    std::ptrdiff_t ldc);

// "avx512", "avx2", "neon", or nullptr: this processor has no kernel here.
const char* sgemm_kernel();

// Takes another one from the next product on: all leave the same bits. False if this processor does
// not have it.
bool set_sgemm_kernel(const char* name);

} // namespace pomona::blas
