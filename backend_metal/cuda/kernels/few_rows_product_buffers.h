// What the kernel of products of few rows is told, and where it finds its arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

inline constexpr int kFewRowsThreads = 256;
inline constexpr int kFewRowsWarps = kFewRowsThreads / 32;

// Elements of the depth that a block takes at once, of 2 bytes, and those of a copy.
inline constexpr int kFewRowsStage = 128;
inline constexpr int kFewRowsRowBytes = kFewRowsStage * 2;
inline constexpr int kFewRowsCopy = 8;

// Of a multiprocessor's shared memory, for a block: there is room for two, or, on GPUs that have so much,
// for one. And the stages in it, at most.
inline constexpr int kFewRowsMemory = 96 * 1024;
inline constexpr int kWholeCoreMemory = 224 * 1024;
inline constexpr int kMostFewRowsStages = 6;
inline constexpr int kMostWholeCoreStages = 12;

// Rows of a block, at most: of one whose warps hold all of them, of one that shares a multiprocessor, and
// of any.
inline constexpr int kMostWarpRows = 32;
inline constexpr int kMostFewRows = 64;
inline constexpr int kManyRows = 128;

// Outputs of a block that computes any number of rows alike.
inline constexpr int kAnyRowsOutputs = 64;

// Whether a block has all splits of the depth.
inline constexpr bool folds_splits(int rows) {
  return rows > kMostWarpRows;
}

// Of a warp that does: those of 32 outputs and half of the rows.
inline constexpr int few_rows_warp_floats(int rows) {
  return 32 * rows / 2;
}

inline constexpr int few_rows_stage_bytes(int outputs, int rows) {
  return (outputs + rows) * kFewRowsRowBytes;
}

// Where warps that fold splits leave their sums to others: behind the stages.
inline constexpr int few_rows_fold_bytes(int outputs, int rows) {
  return folds_splits(rows) ? outputs / 32 * 2 * few_rows_warp_floats(rows) * int(sizeof(float)) : 0;
}

// Stages that are in shared memory or on their way there.
inline constexpr int few_rows_ring(int outputs, int rows, int memory) {
  const int room =
      (memory - few_rows_fold_bytes(outputs, rows)) / few_rows_stage_bytes(outputs, rows);
  const int most = memory > kFewRowsMemory ? kMostWholeCoreStages : kMostFewRowsStages;
  return room < most ? room : most;
}

// Of that memory what a block has, but for what a cluster's splits leave in it.
inline constexpr int few_rows_bytes(int outputs, int rows, int memory) {
  return few_rows_ring(outputs, rows, memory) * few_rows_stage_bytes(outputs, rows) +
      few_rows_fold_bytes(outputs, rows);
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
