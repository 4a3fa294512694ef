#include "blas/kernels.h"

#include <array>
#include <cstring>

namespace pomona::blas {
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
    target static void unpacked_tiles(const Block<QuantizedMatrix>& block, Unpack unpack) {  \
      multiply_unpacked_tiles<Vector, wide>(block, unpack);                                  \
    }                                                                                        \
    target static void few_unpacked(const FewRows<UnpackedColumns>& task) {                  \
      multiply_few<Vector>(task);                                                            \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void unpack(                                                               \
        const QuantizedMatrix& b, Index first, Index valid, Index k0, Index kc, float* out) { \
      blas::unpack<Vector, Bits>(b, first, valid, k0, kc, out);                              \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void round(                                                                \
        const float* rows, Index count, Index depth, const RoundedRows& out) {               \
      round_rows<Bits>(rows, count, depth, out);                                             \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void integers(const IntegerTask& task) {                                   \
      multiply_integers<Bits>(task);                                                         \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void four_rows(const FewRows<QuantizedMatrix>& task) {                      \
      multiply_few<Vector, Bits>(task);                                                      \
    }                                                                                        \
  }

template <typename Functions, int Bits>
constexpr QuantizedKernel quantized() {
  return {Functions::template unpack<Bits>, Functions::template four_rows<Bits>};
}

template <typename Functions, int Bits>
constexpr IntegerKernel integers() {
  return {Functions::template round<Bits>, Functions::template integers<Bits>};
}

template <typename F, typename Vector>
constexpr Kernel kernel_of(const char* name) {
  return {
      name,
      width_of<Vector>,
      few_unpacked_rows<Vector>,
      F::tiles,
      F::few_rows,
      F::unpacked_tiles,
      F::few_unpacked,
      {{},
       {},
       quantized<F, 2>(),
       quantized<F, 3>(),
       quantized<F, 4>(),
       quantized<F, 5>(),
       quantized<F, 6>(),
       {},
       quantized<F, 8>()},
      {integers<F, 4>(), integers<F, 8>()}};
}

#if defined(__x86_64__)
// 32 registers: 24 sums, 3 panels, a scalar. With 16: 12 sums, 3 panels, a scalar.
DEFINE_KERNEL(Avx512, Vector16, 8, [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,fma")]]);
DEFINE_KERNEL(Avx2, Vector8, 4, [[gnu::target("avx2,fma")]]);

constexpr Kernel kKernels[] = {
    kernel_of<Avx512, Vector16>("avx512"), kernel_of<Avx2, Vector8>("avx2")};

bool runs_here(const Kernel& kernel) {
  __builtin_cpu_init();
  if (kernel.width == 16) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#elif defined(__aarch64__)
DEFINE_KERNEL(Neon, Vector4, 8, );

constexpr Kernel kKernels[] = {kernel_of<Neon, Vector4>("neon")};

bool runs_here(const Kernel&) {
  return true;
}
#else
constexpr std::array<Kernel, 0> kKernels;

bool runs_here(const Kernel&) {
  return false;
}
#endif

} // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (runs_here(kernel) && (name == nullptr || std::strcmp(name, kernel.name) == 0)) {
      return &kernel;
    }
  }
  return nullptr;
}

} // namespace pomona::blas
