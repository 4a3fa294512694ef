// Inputs of [tokens, heads, dim] and caches as kernels take them.
#pragma once

#include <mlx/backend/metal/device.h>

#include <optional>

#include "parameters.h"

namespace pomona::metal {

namespace mx = mlx::core;

// Rows that a kernel can read: their last stride is 1.
struct Rows {
  mx::array array; // whose buffer they are in
  int64_t offset; // bytes, from the array's own
  RowStrides strides;
};

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

CacheStrides cache_strides(const mx::array& cache);

// Every row starts at a multiple of 16 bytes.
bool is_aligned(const Rows& rows);
bool is_aligned(const mx::array& cache);

bool share_buffer(const mx::array& a, const mx::array& b);

// Row for row, `b` lies where `a` does.
bool is_prefix(const Rows& a, const Rows& b);
bool is_prefix(const mx::array& cache, const mx::array& other);

// Memory of `count` elements for an output whose shape is empty.
void allocate(mx::array& memory, int64_t count);

} // namespace pomona::metal
