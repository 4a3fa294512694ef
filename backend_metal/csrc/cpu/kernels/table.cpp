#include "cpu/kernels/table.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

namespace pomona::cpu {

namespace baseline {
extern const KernelTable kernels;
}
#ifdef POMONA_X86_KERNELS
namespace avx2 {
extern const KernelTable kernels;
}
namespace avx512 {
extern const KernelTable kernels;
}
#endif

const KernelTable* find_kernels(const char* name) {
#ifdef POMONA_X86_KERNELS
  bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c");
  bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq");
  if (std::strcmp(name, "avx512") == 0) {
    return has_avx512 ? &avx512::kernels : nullptr;
  }
  if (std::strcmp(name, "avx2") == 0) {
    return has_avx2 ? &avx2::kernels : nullptr;
  }
#endif
  return std::strcmp(name, "baseline") == 0 ? &baseline::kernels : nullptr;
}

namespace {

const KernelTable* best_kernels() {
  for (const char* name : {"avx512", "avx2"}) {
    if (const KernelTable* kernels = find_kernels(name)) {
      return kernels;
    }
  }
  return &baseline::kernels;
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> kernels = best_kernels();
  return kernels;
}

} // namespace

const KernelTable& kernels_in_use() {
  return *current();
}

void set_instruction_set(const char* name) {
  const KernelTable* kernels = find_kernels(name);
  if (!kernels) {
    throw std::invalid_argument(
        std::string("instruction_set must be one that this machine has, not ") + name);
  }
  current() = kernels;
}

} // namespace pomona::cpu
