// A compiled source: the emulator's library, loaded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "metal_emulator.h"

namespace pomona::metal_on_cpu {

struct BufferParameter {
  int index;
  bool is_writable;
  bool is_required; // else as the function constant decides
  int constant; // -1: not one alone
};

struct KernelSignature {
  std::vector<BufferParameter> buffers;
  std::vector<int> threadgroup_arguments;
};

class EmulatedLibrary {
 public:
  // Raises std::runtime_error when the file can't be loaded. It stays loaded.
  explicit EmulatedLibrary(const std::string& path);

  // Null when there is no such kernel.
  const KernelSignature* find(const std::string& kernel) const;
  // Null when there is no such function constant.
  const metal_emulator_constant* find_constant(int index) const;
  const std::map<int, const metal_emulator_constant*>& constants() const {
    return constants_;
  }
  // Raises std::runtime_error with what went wrong, and where.
  void run(const metal_emulator_dispatch& dispatch, metal_emulator_result& result) const;
  // Between addresses that are not mapped.
  void* allocate(size_t size, bool guard_at_start) const {
    return allocate_(size, guard_at_start);
  }
  void free(void* memory) const {
    free_(memory);
  }

 private:
  std::map<std::string, KernelSignature> kernels_;
  std::map<int, const metal_emulator_constant*> constants_;
  decltype(&metal_emulator_run) run_;
  decltype(&metal_emulator_allocate) allocate_;
  decltype(&metal_emulator_free) free_;
};

} // namespace pomona::metal_on_cpu
