#include "cpu/gemm/kernels/instruction_set.h"

#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c"

namespace pomona::gemm {
namespace {

// 32 registers: 24 sums, 3 panels, a scalar.
DEFINE_KERNEL(Avx512, Vector16, 8, [[gnu::target(AVX512)]]);
DEFINE_INTEGER_KERNEL(Avx512Shorts, ShortProducts, [[gnu::target(AVX512)]]);
#if !defined(__clang__)
DEFINE_INTEGER_KERNEL(Avx512Bytes, ByteProducts, [[gnu::target(AVX512 ",avx512vnni")]]);
#endif

} // namespace

const Kernel kAvx512 = kernel_of<Avx512, Avx512Shorts, Vector16>("avx512");
#if !defined(__clang__)
const Kernel kAvx512Vnni = kernel_of<Avx512, Avx512Bytes, Vector16>("avx512vnni");
#endif

} // namespace pomona::gemm
