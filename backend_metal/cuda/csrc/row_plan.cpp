#include "cuda/csrc/row_plan.h"

#include "common/constants.h"
#include "cuda/csrc/rows_of_elements.h"
#include "cuda/kernels/silu_product_buffers.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

constexpr int kMaxChunks = 8;
constexpr int kNarrowThreads = 64;
constexpr int kThreads = 128;
constexpr int kWideThreads = 1024;

} // namespace

RowBlock plan_norm_block(int width, int itemsize) {
  int vectors = ceil_div(width * itemsize, kVectorBytes);
  if (vectors <= kNarrowThreads) {
    return {kNarrowThreads, 1};
  }
  if (vectors > kThreads * kMaxChunks) {
    return {kWideThreads, 0};
  }
  bool is_narrow = vectors % kThreads != 0 && vectors % kNarrowThreads == 0 &&
      vectors / kNarrowThreads <= kMaxChunks;
  int threads = is_narrow ? kNarrowThreads : kThreads;
  return {threads, ceil_div(vectors, threads)};
}

GpuGrid plan_add_rms_norm(int num_rows, const RowBlock& block) {
  int64_t sums = block.threads / kSimdWidth * int64_t(sizeof(float));
  return {num_rows, 1, 1, block.threads, ceil_div(sums, kVectorBytes) * kVectorBytes};
}

int silu_blocks_per_row(int width, int itemsize) {
  return ceil_div(ceil_div(width * itemsize, kVectorBytes), kSiluThreads);
}

GpuGrid plan_silu_product(int num_rows, int blocks_per_row) {
  return {num_rows * blocks_per_row, 1, 1, kSiluThreads, 0};
}

} // namespace pomona::cuda
