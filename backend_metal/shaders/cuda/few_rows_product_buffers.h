// What the kernel of products of few rows is told, and where it finds its arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

inline constexpr int kFewRowsThreads = 256;
inline constexpr int kFewRowsWarps = kFewRowsThreads / 32;

// Elements of the depth that a block takes at once, of 2 bytes, and those of a copy.
inline constexpr int kFewRowsStage = 128;
inline constexpr int kFewRowsRowBytes = kFewRowsStage * 2;
inline constexpr int kFewRowsCopy = 8;

// Of a multiprocessor's shared memory, so that there is room for two blocks.
inline constexpr int kFewRowsMemory = 96 * 1024;
inline constexpr int kMostFewRowsStages = 6;

inline constexpr int few_rows_stage_bytes(int outputs, int rows) {
  return (outputs + rows) * kFewRowsRowBytes;
}

// Stages that are in shared memory or on their way there.
inline constexpr int few_rows_ring(int outputs, int rows) {
  const int room = kFewRowsMemory / few_rows_stage_bytes(outputs, rows);
  return room < kMostFewRowsStages ? room : kMostFewRowsStages;
}

struct FewRowsProductParameters {
  int num_rows; // of x
  int num_outputs; // of a row of out
  int depth; // a multiple of kFewRowsCopy
  int stages_per_split;
  int num_splits;
  int in_cluster; // whether a cluster has the splits
  int reads_ahead; // whether the matrix was there before the kernels that come before
};

struct FewRowsProductBuffers {
  const void* x; // [num_rows, depth]
  const void* weights; // [num_outputs, depth], or twice as many rows if gated
  void* out; // [num_rows, num_outputs]
  float* partials; // if num_splits > 1 and not in_cluster: [output tile, tile of rows, split, row, output]
  unsigned* counters; // likewise: zeros before and after
};

} // namespace pomona
