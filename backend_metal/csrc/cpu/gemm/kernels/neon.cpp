#include "cpu/gemm/kernels/instruction_set.h"

namespace pomona::gemm {
namespace {

DEFINE_KERNEL(Neon, Vector4, 8, );
DEFINE_INTEGER_KERNEL(NeonShorts, ShortProducts, );

} // namespace

const Kernel kNeon = kernel_of<Neon, NeonShorts, Vector4>("neon");

} // namespace pomona::gemm
