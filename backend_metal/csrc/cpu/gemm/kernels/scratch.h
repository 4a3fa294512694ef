#pragma once

#include <cstdlib>
#include <memory>

#include "cpu/gemm/operands.h"

namespace pomona::gemm {

// Memory that a thread reuses; it grows to the largest size asked for.
class Scratch {
 public:
  float* get(Index size) {
    if (size_ < size) {
      data_.reset(static_cast<float*>(std::aligned_alloc(64, divide_up(size, 16) * 64)));
      size_ = size;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* data) const {
      std::free(data);
    }
  };

  std::unique_ptr<float, Free> data_;
  Index size_ = 0;
};

} // namespace pomona::gemm
