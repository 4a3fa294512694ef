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
      blas::unpack<Vector, Bits>(b, first, valid, k0, kc, out);                              \
    }                                                                                        \
    template <int Bits>                                                                      \
    target static void four_rows(const FewRows<QuantizedMatrix>& task) {                      \
      multiply_few<Vector, Bits>(task);                                                      \
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
constexpr QuantizedKernel quantized() {
  return {Functions::template unpack<Bits>, Functions::template four_rows<Bits>};
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
      {{},
       {},
       quantized<F, 2>(),
       quantized<F, 3>(),
       quantized<F, 4>(),
       quantized<F, 5>(),
       quantized<F, 6>(),
       {},
       quantized<F, 8>()},
      {integers<Integers, 4>(), integers<Integers, 8>()}};
}

struct Candidate {
  Kernel kernel;
  bool (*runs_here)();
};

#if defined(__x86_64__)
#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c"
// 32 registers: 24 sums, 3 panels, a scalar. With 16: 12 sums, 3 panels, a scalar.
DEFINE_KERNEL(Avx512, Vector16, 8, [[gnu::target(AVX512)]]);
DEFINE_KERNEL(Avx2, Vector8, 4, [[gnu::target("avx2,fma,f16c")]]);
DEFINE_INTEGER_KERNEL(Avx512Shorts, ShortProducts, [[gnu::target(AVX512)]]);
DEFINE_INTEGER_KERNEL(Avx2Shorts, ShortProducts, [[gnu::target("avx2,fma,f16c")]]);

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#if !defined(__clang__)
DEFINE_INTEGER_KERNEL(Avx512Bytes, ByteProducts, [[gnu::target(AVX512 ",avx512vnni")]]);

bool has_bytes() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

constexpr Candidate kKernels[] = {
#if !defined(__clang__)
    {kernel_of<Avx512, Avx512Bytes, Vector16>("avx512vnni"), has_bytes},
#endif
    {kernel_of<Avx512, Avx512Shorts, Vector16>("avx512"), has_avx512},
    {kernel_of<Avx2, Avx2Shorts, Vector8>("avx2"), has_avx2}};
#elif defined(__aarch64__)
DEFINE_KERNEL(Neon, Vector4, 8, );
DEFINE_INTEGER_KERNEL(NeonShorts, ShortProducts, );

constexpr Candidate kKernels[] = {
    {kernel_of<Neon, NeonShorts, Vector4>("neon"), [] { return true; }}};
#else
constexpr std::array<Candidate, 0> kKernels;
#endif

} // namespace

const Kernel* find_kernel(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  for (const Candidate& candidate : kKernels) {
    const Kernel& kernel = candidate.kernel;
    if ((name == nullptr || std::strcmp(name, kernel.name) == 0) && candidate.runs_here()) {
      return &kernel;
    }
  }
  return nullptr;
}

} // namespace pomona::blas
