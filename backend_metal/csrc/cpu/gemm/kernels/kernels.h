// One entry for each instruction set that products are compiled for. All leave the same bits.
#pragma once

#if defined(__x86_64__) && !defined(__clang__)
#include "cpu/gemm/kernels/byte_products.h"
#endif
#include "cpu/gemm/kernels/few_rows.h"
#include "cpu/gemm/kernels/integer_products.h"
#include "cpu/gemm/kernels/tiles.h"

namespace pomona::gemm {

// Of one number of bits, products with activations that became integers.
struct IntegerKernel {
  void (*round)(const float* rows, Index count, Index depth, const RoundedRows& out);
  void (*multiply)(const IntegerTask& task);
};

struct Kernel {
  const char* name;
  Index width; // floats in a vector
  Index few_unpacked_rows;
  void (*tiles)(const Block<Matrix>& block);
  void (*few_rows)(const FewRows<Matrix>& task);
  void (*panel_tiles)(const Block<ColumnPanels>& block);
  void (*few_of_panels)(const FewRows<ColumnPanels>& task);
  void (*unpacked_tiles)(const Block<QuantizedMatrix>& block, Unpack unpack);
  void (*few_unpacked)(const FewRows<UnpackedColumns>& task);
  Unpack unpack[9]; // by bits
  IntegerKernel integers[2]; // of 4 and of 8 bits
};

// Which of them there are depends on the processor that is compiled for.
extern const Kernel kAvx512Vnni, kAvx512, kAvx2, kNeon;

// The one of this name, or the best without a name; null if this processor has none.
const Kernel* find_kernel(const char* name);

} // namespace pomona::gemm
