// Products of few rows with a matrix, at the memory's speed: out = x @ weights.T, or, of a matrix whose
// halves make gates and what they let pass, the activation of these.
//
// A block owns OUTPUTS outputs and TILES * 8 rows, over one split of the depth. Its warps have sixteen
// outputs each, and of each stage of the depth a part. Matrix and rows come through shared memory, some
// stages ahead: memory's latency is that of tens of KB on their way to each core. The matrix's first
// stages are read while the kernel before this one still runs. At the end the parts are summed up, and
// the splits.
//
// Of more rows a warp has 32 outputs and half of the rows, so that it reads less of what it multiplies,
// and a block all splits, one after another. OUTPUTS, and where splits end, are all that a sum's order
// depends on: a row gets the same bits whichever TILES it is computed with.
#pragma once

#include <cstdint>
#include <metal_stdlib>

#include "few_rows_product_buffers.h"
#include "product_splits.h"
#include "rounding.h"
#include "silu.h"

namespace pomona {

// GATED: half of a block's rows of the matrix are of gates, and the others as far behind these. MEMORY: of
// a multiprocessor, for a block.
template <typename T, int OUTPUTS, int TILES, bool GATED, int MEMORY>
struct FewRowsProduct {
  static constexpr int kRows = TILES * 8;
  static constexpr int kOutputTiles = OUTPUTS / 16;
  static constexpr int kParts = kFewRowsWarps / kOutputTiles;
  static constexpr int kSteps = kFewRowsStage / kParts / 32; // of a part, of 32 elements
  static constexpr bool kFolds = folds_splits(kRows);
  static constexpr int kRowParts = kFolds ? 2 : 1; // warps that share the rows
  static constexpr int kWarpOutputs = kRowParts; // tiles of 16
  static constexpr int kWarpTiles = TILES / kRowParts;
  static constexpr int kAcrossOutputs = kOutputTiles / kWarpOutputs; // warps
  static constexpr int kRing = few_rows_ring(OUTPUTS, kRows, MEMORY);
  static constexpr int kStageBytes = few_rows_stage_bytes(OUTPUTS, kRows);
  static constexpr int kOwned = GATED ? OUTPUTS / 2 : OUTPUTS; // of out, a row
  static constexpr int kMatrixBytes = OUTPUTS * kFewRowsRowBytes; // of a stage; x is behind it
  // Between two rows' sums: so that a warp's stores meet all banks.
  static constexpr int kSumStride = OUTPUTS + 4;
  static constexpr int kSharedParts = kFolds ? 1 : kParts; // that are yet to be added up in the end
  static_assert(kSharedParts * kRows * kSumStride * int(sizeof(float)) <= kRing * kStageBytes);
  static_assert(!kFolds || kParts == 2, "each part adds up one of two tiles of outputs");

  // Of what a warp multiplies, as the instruction has it, and of what it adds up.
  using Sums = float[kWarpOutputs][kWarpTiles][4];
  using Totals = float[kWarpTiles][4];

  const FewRowsProductParameters& p;
  const FewRowsProductBuffers& b;
  const int lane = thread_index() % 32;
  const int warp_place = thread_index() / 32 % kOutputTiles; // among those of its part
  const int output_tile = warp_place % kAcrossOutputs * kWarpOutputs;
  const int first_tile = warp_place / kAcrossOutputs * kWarpTiles;
  const int part = thread_index() / 32 / kOutputTiles;
  const int first_row = block_position().x * kRows;
  const int first_output = block_position().y * kOwned;
  const int num_stages = (p.depth + kFewRowsStage - 1) / kFewRowsStage;
  const int first_stage = kFolds ? 0 : block_position().z * p.stages_per_split;
  const int last_stage =
      kFolds ? num_stages : metal::min(first_stage + p.stages_per_split, num_stages);

  // A thread's copies: of every so many rows, those of one place across.
  static constexpr int kAcross = kFewRowsStage / kFewRowsCopy;
  static constexpr int kCopyRows = kFewRowsThreads / kAcross;
  static_assert(kCopyRows % 8 == 0, "all rows that a thread copies turn alike");
  const int across = thread_index() % kAcross;
  const int copied = thread_index() / kAcross;
  const int last_output = p.num_outputs - 1;
  const int copied_output = metal::min(first_output + copied, last_output);
  const int behind_gates = GATED ? p.num_outputs : 0;
  const T* weights_from = static_cast<const T*>(b.weights) + int64_t(copied_output) * p.depth +
      across * kFewRowsCopy;
  const T* x_from = static_cast<const T*>(b.x) + across * kFewRowsCopy;

  // Of a stage in shared memory, where eight rows' pieces at one place across meet all banks.
  static int place_of(int row, int piece) {
    return row * kFewRowsRowBytes + (piece ^ row % 8) * 16;
  }

  bool is_within_depth(int stage) const {
    return stage * kFewRowsStage + across * kFewRowsCopy < p.depth;
  }

  // Beyond the depth there are zeros, as in x.
  void copy_weights(int stage, int slot) const {
    if (stage >= last_stage) {
      return;
    }
    unsigned char* to = shared_memory() + slot * kStageBytes + place_of(copied, across);
    const T* from = weights_from + stage * kFewRowsStage;
    const bool is_present = is_within_depth(stage);
#pragma unroll
    for (int i = 0; i < OUTPUTS; i += kCopyRows) {
      const int behind = metal::min(i % kOwned, last_output - copied_output) +
          (i < kOwned ? 0 : behind_gates);
      start_copy(to + i * kFewRowsRowBytes, strides_behind(from, behind, p.depth), is_present);
    }
  }

  void copy_x(int stage, int slot) const {
    if (stage >= last_stage) {
      return;
    }
    unsigned char* to = shared_memory() + slot * kStageBytes + kMatrixBytes + place_of(copied, across);
#pragma unroll
    for (int i = 0; i < kRows; i += kCopyRows) {
      const int row = first_row + copied + i;
      if (copied + i < kRows) {
        const bool is_present = row < p.num_rows && is_within_depth(stage);
        const T* from = x_from + stage * kFewRowsStage;
        start_copy(
            to + i * kFewRowsRowBytes,
            strides_behind(from, is_present ? row : 0, p.depth),
            is_present);
      }
    }
  }

  void add(Sums& sums, int slot) const {
    const unsigned char* weights = shared_memory() + slot * kStageBytes;
    const unsigned char* x = weights + kMatrixBytes;
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      const int piece = (part * kSteps + step) * 4;
      unsigned left[2][kWarpOutputs][4];
#pragma unroll
      for (int half_step = 0; half_step < 2; half_step++) {
#pragma unroll
        for (int output = 0; output < kWarpOutputs; output++) {
          const int row = (output_tile + output) * 16 + lane % 16;
          load_matrices(
              left[half_step][output], weights + place_of(row, piece + half_step * 2 + lane / 16));
        }
      }
      unsigned right[kWarpTiles][4];
#pragma unroll
      for (int tile = 0; tile < kWarpTiles; tile++) {
        const int row = (first_tile + tile) * 8 + lane % 8;
        load_matrices(right[tile], x + place_of(row, piece + lane / 8));
      }
      // A sum waits for the product before it, so those of all tiles are in between.
#pragma unroll
      for (int half_step = 0; half_step < 2; half_step++) {
#pragma unroll
        for (int output = 0; output < kWarpOutputs; output++) {
#pragma unroll
          for (int tile = 0; tile < kWarpTiles; tile++) {
            multiply_accumulate<T>(
                sums[output][tile],
                left[half_step][output],
                right[tile][2 * half_step],
                right[tile][2 * half_step + 1]);
          }
        }
      }
    }
  }

  // Adds a split's sums, of both parts, to those of the splits before it: of a warp's two tiles of
  // outputs each part takes one, and hands its sums of the other over. Between two calls all threads
  // meet.
  void fold(Sums& sums, Totals& totals) const {
    float* places = reinterpret_cast<float*>(shared_memory() + kRing * kStageBytes) + lane;
    const auto place_of_sum = [&](int taker, int tile, int i) {
      return places + ((taker * kOutputTiles + warp_place) * kWarpTiles * 4 + tile * 4 + i) * 32;
    };
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        *place_of_sum(1 - part, tile, i) = part == 0 ? sums[1][tile][i] : sums[0][tile][i];
      }
    }
    sync_block();
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float own = part == 0 ? sums[0][tile][i] : sums[1][tile][i];
        totals[tile][i] += own + *place_of_sum(part, tile, i);
        sums[0][tile][i] = sums[1][tile][i] = 0.0f;
      }
    }
  }

  // Behind what all parts have read of the last stages.
  void share(const float (&sums)[kWarpTiles][4], int tile_of_outputs, int of_part) const {
    float* own = reinterpret_cast<float*>(shared_memory()) + of_part * kRows * kSumStride +
        tile_of_outputs * 16;
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = (first_tile + tile) * 8 + lane % 4 * 2 + i % 2;
        own[row * kSumStride + i / 2 * 8 + lane / 4] = sums[tile][i];
      }
    }
  }

  // Of the matrix's row that is so many behind the first of the block.
  float shared_sum(int row, int output) const {
    const float* at =
        reinterpret_cast<const float*>(shared_memory()) + row * kSumStride + output;
    float sum = at[0];
#pragma unroll
    for (int other = 1; other < kSharedParts; other++) {
      sum += at[other * kRows * kSumStride];
    }
    return sum;
  }

  // `place` is in [kRows, kOwned].
  void store(int place, float value) const {
    const int row = first_row + place / kOwned, output = first_output + place % kOwned;
    if (row < p.num_rows && output < p.num_outputs) {
      static_cast<T*>(b.out)[int64_t(row) * p.num_outputs + output] = from_float<T>(value);
    }
  }

  float result(int place) const {
    const int row = place / kOwned, output = place % kOwned;
    const float sum = shared_sum(row, output);
    if constexpr (GATED) {
      const float up = shared_sum(row, output + kOwned);
      return silu_product_of<T>(rounded_to<T>(sum), rounded_to<T>(up));
    }
    return sum;
  }

  void finish() const {
    constexpr int kResults = kRows * kOwned;
    const auto result_at = [&](int place) { return result(place); };
    const auto store_at = [&](int place, float value) { store(place, value); };
    // The depth of gated ones is never shared out.
    constexpr bool kShared = !GATED && !kFolds;
    if (kShared && p.in_cluster) {
      float* received = reinterpret_cast<float*>(shared_memory() + kRing * kStageBytes);
      join_in_cluster<kResults, kFewRowsThreads>(
          received, block_position().z, p.num_splits, result_at, store_at);
      return;
    }
    if (kShared && p.num_splits > 1) {
      const int row_tiles = (p.num_rows + kRows - 1) / kRows;
      const int64_t tile = int64_t(block_position().y) * row_tiles + block_position().x;
      join_splits<kResults, kFewRowsThreads>(
          b.partials + tile * p.num_splits * kResults,
          b.counters + tile,
          block_position().z,
          p.num_splits,
          result_at,
          store_at);
      return;
    }
    for (int place = thread_index(); place < kResults; place += kFewRowsThreads) {
      store(place, result(place));
    }
  }

  void run() const {
    let_next_begin();
    if (!p.reads_ahead) {
      wait_for_kernels_before();
    }
    for (int ahead = 0; ahead < kRing - 1; ahead++) {
      copy_weights(first_stage + ahead, ahead);
    }
    if (p.in_cluster) {
      meet_cluster();
    }
    wait_for_kernels_before();
    // Copies stand for a stage even where there is none any more, so that the latest are so many.
    for (int ahead = 0; ahead < kRing - 1; ahead++) {
      copy_x(first_stage + ahead, ahead);
      end_copies();
    }
    Sums sums = {};
    Totals totals = {};
    int slot = 0, free_slot = kRing - 1;
    for (int stage = first_stage; stage < last_stage; stage++) {
      wait_for_copies<kRing - 2>();
      // Everybody's copies are there, and nobody reads the stage before any more, whose place is free.
      sync_block();
      copy_weights(stage + kRing - 1, free_slot);
      copy_x(stage + kRing - 1, free_slot);
      end_copies();
      add(sums, slot);
      if constexpr (kFolds) {
        if ((stage + 1) % p.stages_per_split == 0 || stage + 1 == last_stage) {
          fold(sums, totals);
        }
      }
      free_slot = slot;
      slot = slot + 1 == kRing ? 0 : slot + 1;
    }
    sync_block();
    if constexpr (kFolds) {
      share(totals, output_tile + part, 0);
    } else {
      share(sums[0], output_tile, part);
    }
    sync_block();
    finish();
  }
};

} // namespace pomona
