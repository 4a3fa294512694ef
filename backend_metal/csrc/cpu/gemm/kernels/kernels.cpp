#include "cpu/gemm/kernels/kernels.h"

#include <array>
#include <cstring>

namespace pomona::gemm {
namespace {

struct Candidate {
  const Kernel& kernel;
  bool (*runs_here)();
};

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#if !defined(__clang__)
bool has_bytes() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

constexpr Candidate kKernels[] = {
#if !defined(__clang__)
    {kAvx512Vnni, has_bytes},
#endif
    {kAvx512, has_avx512},
    {kAvx2, has_avx2}};
#elif defined(__aarch64__)
constexpr Candidate kKernels[] = {{kNeon, [] { return true; }}};
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

} // namespace pomona::gemm
