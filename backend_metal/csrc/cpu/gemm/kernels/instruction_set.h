// Builds the entry of one instruction set; included by the file that is compiled for it.
#pragma once

#include "cpu/gemm/kernels/kernels.h"

namespace pomona::gemm {
namespace {

// Everything in the headers is inlined into these, which are compiled for one instruction set.
#define DEFINE_KERNEL(kernel, Vector, wide, target)                                          \
  struct kernel {                                                                            \
    target static void tiles(const Block<Matrix>& block) {                                   \
      multiply_tiles<Vector, wide>(block);                                                   \
    }                                                                                        \
    target static void few_rows(const FewRows<Matrix>& task) {                               \
      multiply_few<Vector>(task);                                                            \
    }                                                                                        \
    target static void panel_tiles(const Block<ColumnPanels>& block) {                       \
      multiply_tiles<Vector, wide>(block);                                                   \
    }                                                                                        \
    target static void few_of_panels(const FewRows<ColumnPanels>& task) {                    \
      multiply_few<Vector>(task);                                                            \
    }                                                                                        \
    target static void unpacked_tiles(const Block<QuantizedMatrix>& block, Unpack unpack) {  \
      multiply_unpacked_tiles<Vector, wide>(block, unpack);                                  \
    }                                                                                        \
    target static void few_unpacked(const FewRows<UnpackedColumns>& task) {                  \
      multiply_few<Vector>(task);                                                            \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void unpack(                                                               \
        const QuantizedMatrix& b, Index first, Index valid, Index k0, Index kc, float* out) { \
      gemm::unpack<Vector, Bits>(b, first, valid, k0, kc, out);                              \
    }                                                                                        \
  }

#define DEFINE_INTEGER_KERNEL(kernel, Products, target)                                      \
  struct kernel {                                                                            \
    template <int Bits>                                                                      \
    target static void round(                                                                \
        const float* rows, Index count, Index depth, const RoundedRows& out) {               \
      Products<Bits>::round(rows, count, depth, out);                                        \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void multiply(const IntegerTask& task) {                                   \
      Products<Bits>::multiply(task);                                                        \
    }                                                                                        \
  }

template <typename Functions, int Bits>
constexpr IntegerKernel integers() {
  return {Functions::template round<Bits>, Functions::template multiply<Bits>};
}

template <typename F, typename Integers, typename Vector>
constexpr Kernel kernel_of(const char* name) {
  return {
      name,
      width_of<Vector>,
      few_unpacked_rows<Vector>,
      F::tiles,
      F::few_rows,
      F::panel_tiles,
      F::few_of_panels,
      F::unpacked_tiles,
      F::few_unpacked,
      {nullptr,
       nullptr,
       F::template unpack<2>,
       F::template unpack<3>,
       F::template unpack<4>,
       F::template unpack<5>,
       F::template unpack<6>,
       nullptr,
       F::template unpack<8>},
      {integers<Integers, 4>(), integers<Integers, 8>()}};
}

} // namespace
} // namespace pomona::gemm
