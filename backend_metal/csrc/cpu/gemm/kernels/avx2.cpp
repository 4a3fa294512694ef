#include "cpu/gemm/kernels/instruction_set.h"

namespace pomona::gemm {
namespace {

// 16 registers: 12 sums, 3 panels, a scalar.
DEFINE_KERNEL(Avx2, Vector8, 4, [[gnu::target("avx2,fma,f16c")]]);
DEFINE_INTEGER_KERNEL(Avx2Shorts, ShortProducts, [[gnu::target("avx2,fma,f16c")]]);

} // namespace

const Kernel kAvx2 = kernel_of<Avx2, Avx2Shorts, Vector8>("avx2");

} // namespace pomona::gemm
