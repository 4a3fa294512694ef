// What the kernel of products with quantized matrices is told, and where it finds its arrays. C++ and
// CUDA read it.
#pragma once

#include <cstdint>

namespace pomona {

// Of a block: outputs (rows of the matrix), which two halves of its warps share, and in how many
// parts each stage of the depth is cut among them.
inline constexpr int kProductOutputs = 64;
inline constexpr int kProductParts = 2;
inline constexpr int kProductThreads = 128;

// Stages that are in shared memory or on their way there.
inline constexpr int kProductRing = 3;

// Between the sums of two rows of x in shared memory: so that a warp's stores meet all banks.
inline constexpr int kProductSumStride = kProductOutputs + 4;

// Bytes of a row of the matrix that a lane takes at once, and its four lanes.
inline constexpr int kProductLaneBytes = 16;
inline constexpr int kProductChunkBytes = 64;

// Elements of the depth that a block takes at once.
inline constexpr int product_stage(int bits) {
  return kProductParts * kProductChunkBytes * 8 / bits;
}

struct QuantizedProductParameters {
  int num_rows; // of x
  int num_outputs;
  int depth; // a multiple of a chunk
  int log2_group; // elements of a row of the matrix that share a scale
  int stages_per_split;
  int num_splits;
  int reads_ahead; // whether the matrix was there before the kernels that come before
};

struct QuantizedProductBuffers {
  const void* x; // [num_rows, depth]
  const unsigned* weights; // [num_outputs, depth * bits / 32]
  const void* scales; // [num_outputs, depth / group]
  const void* biases;
  void* out; // [num_rows, num_outputs]
  float* partials; // if num_splits > 1: [output tile, tile of rows, split, row, output]
  unsigned* counters; // if num_splits > 1: zeros before and after
};

} // namespace pomona
