// Inputs whose rows kernels cannot read where they are.
#pragma once

#include <mlx/backend/metal/device.h>

#include "gpu/rows.h"

namespace pomona::metal {

// Copies of rows that are not, in an output of the primitive: MLX keeps that until the GPU is done.
class Packing {
 public:
  // Gives `memory` room for those of `inputs` that need it.
  Packing(mx::array& memory, const std::vector<mx::array>& inputs);

  // The rows themselves, or a copy of them, which this encodes.
  Rows rows(const mx::array& in, mx::metal::Device& device, mx::metal::CommandEncoder& encoder);

 private:
  mx::array& memory_;
  int64_t used_ = 0; // bytes
};

// Memory of `count` elements for an output whose shape is empty.
void allocate(mx::array& memory, int64_t count);

} // namespace pomona::metal
