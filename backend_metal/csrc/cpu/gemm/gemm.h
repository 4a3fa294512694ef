// Matrix products of float32 whose rows do not depend on their company.
//
// Element (m, n) is one chain of fused multiply-adds over k, cut at multiples of kDepth: the same
// bits for any number of rows or columns, any position among them and any number of threads. A BLAS
// promises none of that: it picks kernels by shape. This is what lets a request get the same tokens
// alone and in a batch. The right-hand side is read where it lies, not packed first, so the few
// rows of a decode step run at the speed of memory.
//
// A quantized one stays as it is, too. With weights of 4 or 8 bits and whole chunks of 64 in its depth,
// a product is one of integers (integer_products.h), several times as fast; others leave the bits that
// the matrix's elements as floats would. Which of the two it is follows from the matrix alone.
#pragma once

#include "cpu/gemm/operands.h"

namespace pomona::gemm {

// c = alpha * a b + beta * c, with a [m, k], b [k, n] and c [m, n] of row stride `ldc`. One of b's
// strides is 1. As in BLAS, beta = 0 overwrites whatever c held.
void sgemm(
    Index m,
    Index n,
    Index k,
    float alpha,
    const Matrix& a,
    const Matrix& b,
    float beta,
    float* c,
    Index ldc);

// c = a b, with a [m, k] and c [m, n], both contiguous: the bits of sgemm. Needs a kernel.
void panel_product(Index m, const float* a, const ColumnPanels& b, float* c);

// The columns of a product with the transpose of `matrix`, [columns, depth], as panels. `out` has room
// for whole ones, and zeros.
void lay_in_panels(const float* matrix, Index columns, Index depth, float* out);

// c = a b, with a [m, k] and c [m, n], both contiguous. Needs a kernel.
void quantized_product(Index m, const float* a, const QuantizedMatrix& b, float* c);

// "avx512vnni", "avx512", "avx2", "neon", or nullptr: this processor has no kernel here.
const char* kernel_name();

// Takes another one from the next product on: all leave the same bits. False if this processor does
// not have it.
bool set_kernel(const char* name);

} // namespace pomona::gemm
