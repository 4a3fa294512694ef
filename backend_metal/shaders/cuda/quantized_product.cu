// Products of rows with a quantized matrix, whose weights are unpacked into registers, straight into
// the left sides of tensor cores' products: out = x @ (scale * number + bias).T.
//
// A block owns kProductOutputs outputs and TILES * 8 rows, over one split of the depth. Of each stage
// of the depth its warps take parts: a warp two tiles of 16 outputs, over a chunk, of which a lane
// has 16 bytes of each of four rows of the matrix. Words and rows of x come through shared memory,
// some stages ahead: memory's latency is that of tens of KB on their way to each core. At the end the
// parts are summed up, and the splits, in their order, by the block that ends last.
#include <metal_stdlib>

#include "cuda/quantized_product_buffers.h"
#include "cuda/quantized_words.h"
#include "cuda/rounding.h"

#undef POMONA_LEAST_BLOCKS
#define POMONA_LEAST_BLOCKS , 3

namespace pomona {

// Of a lane, for each of its four rows of the matrix. On their way from memory, so that nothing is made
// of them before they are used.
struct ProductScales {
  unsigned short scales[4];
  unsigned short biases[4];
};

template <typename T, int BITS, int TILES>
struct QuantizedProduct {
  static constexpr int kLaneElements = kProductLaneBytes * 8 / BITS;
  static constexpr int kChunk = 4 * kLaneElements;
  static constexpr int kPieces = kLaneElements / 8; // of 16 bytes of x, for each of a lane's words
  static constexpr int kStage = kProductParts * kChunk;
  static constexpr int kRows = TILES * 8;
  static constexpr int kWordBytes = kProductThreads * 4 * kProductLaneBytes; // of a stage
  static constexpr int kStageBytes = kWordBytes + kStage * kRows * sizeof(T);
  using Words = QuantizedWords<T, BITS>;

  const QuantizedProductParameters& p;
  const QuantizedProductBuffers& b;
  const int lane = thread_index() % 32;
  const int warp = thread_index() / 32;
  const int part = warp / 2;
  const int first_row = block_position().x * kRows;
  const int first_output = block_position().y * kProductOutputs;
  const int num_chunks = p.depth / kChunk;
  // Of the matrix's rows a lane has this one and each eighth behind it, as far as there are.
  const int last_output = p.num_outputs - 1;
  const int own_output = metal::min(first_output + warp % 2 * 32 + lane / 4, last_output);

  // Where a chunk's piece of eight rows of x lies among a stage's rows, and a row's part of that. What
  // the lanes of a warp read at once is 512 bytes in a row, and what eight threads write at once
  // meets all banks.
  static constexpr int place(int chunk, int piece, int tile) {
    return ((chunk * kPieces + piece) * TILES + tile) * 32 * 8;
  }
  static int place_within(int piece, int slot) {
    return (slot ^ (piece * (8 / kPieces))) * 8;
  }

  static unsigned char* stage_memory(int stage) {
    return shared_memory() + stage % kProductRing * kStageBytes;
  }
  // A thread's words, which nobody else reads.
  static unsigned char* words_of(int stage, int row) {
    return stage_memory(stage) + (row * kProductThreads + thread_index()) * kProductLaneBytes;
  }
  static T* rows_of(int stage) {
    return reinterpret_cast<T*>(stage_memory(stage) + kWordBytes);
  }

  // Copies stand for a stage even where there is none any more, so that the latest are so many stages.
  void start_stage(int stage, int last) const {
    if (stage < last) {
      copy_words(stage);
      copy_rows(stage);
    }
    end_copies();
  }

  // Beyond the depth there are zeros, as in x.
  void copy_words(int stage) const {
    const int row_words = p.depth / (32 / BITS);
    const int chunk = stage * kProductParts + part;
    const unsigned* from = b.weights + int64_t(own_output) * row_words +
        chunk * (kProductChunkBytes / 4) + lane % 4 * (kProductLaneBytes / 4);
#pragma unroll
    for (int row = 0; row < 4; row++) {
      const int behind = metal::min(8 * row, last_output - own_output);
      start_copy(
          words_of(stage, row), strides_behind(from, behind, row_words), chunk < num_chunks);
    }
  }

  // All that a thread copies is of one piece of the stage.
  void copy_rows(int stage) const {
    constexpr int kAcross = kStage / 8, kRowsAtOnce = kProductThreads / kAcross;
    static_assert(kRowsAtOnce <= 8 && kRows % kRowsAtOnce == 0, "rows of a tile, one after another");
    const int across = thread_index() % kAcross, row = thread_index() / kAcross;
    const int within = across % (kChunk / 8);
    const int piece = within % kPieces;
    const int depth = stage * kStage + across * 8;
    T* to = rows_of(stage) + place(across / (kChunk / 8), piece, 0) +
        place_within(piece, row * 4 + within / kPieces);
    const T* from = static_cast<const T*>(b.x) + int64_t(first_row + row) * p.depth + depth;
    const int present = depth < p.depth ? p.num_rows - first_row - row : 0;
#pragma unroll
    for (int i = 0; i < kRows; i += kRowsAtOnce) {
      start_copy(
          to + place(0, 0, i / 8) + i % 8 * 4 * 8, strides_behind(from, i, p.depth), i < present);
    }
  }

  void load_scales(ProductScales& to, int stage) const {
    const int chunk = metal::min(stage * kProductParts + part, num_chunks - 1);
    const int groups = p.depth >> p.log2_group;
    const int64_t group = int64_t(own_output) * groups +
        ((chunk * kChunk + lane % 4 * kLaneElements) >> p.log2_group);
    const T* scales = static_cast<const T*>(b.scales) + group;
    const T* biases = static_cast<const T*>(b.biases) + group;
#pragma unroll
    for (int row = 0; row < 4; row++) {
      const int behind = metal::min(8 * row, last_output - own_output);
      to.scales[row] = strides_behind(scales, behind, groups)->bits;
      to.biases[row] = strides_behind(biases, behind, groups)->bits;
    }
  }

  static PairScale scale_of(const ProductScales& from, int row) {
    const unsigned scale = from.scales[row], bias = from.biases[row];
    return {join_halves(scale, scale, false), join_halves(bias, bias, false)};
  }

  void add(float (&sums)[2][TILES][4], const ProductScales& scales, int stage) const {
    unsigned words[4][4];
#pragma unroll
    for (int row = 0; row < 4; row++) {
      load_words(words[row], words_of(stage, row));
    }
    const T* rows = rows_of(stage) + place(part, 0, 0);
#pragma unroll
    for (int piece = 0; piece < kPieces; piece++) {
      const T* own = rows + place(0, piece, 0) + place_within(piece, lane);
      unsigned x[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        load_words(x[tile], own + place(0, 0, tile));
      }
      unsigned left[2][2][4];
#pragma unroll
      for (int half_block = 0; half_block < 2; half_block++) {
        const int word = piece * Words::kWordsPerPiece, row = half_block * 2;
        left_sides<Words>(
            left[half_block],
            &words[row][word],
            &words[row + 1][word],
            scale_of(scales, row),
            scale_of(scales, row + 1));
      }
      // A sum waits for the product before it, so those of all tiles are in between.
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
          const unsigned right = Words::elements(x[tile], 2 * i);
          const unsigned next = Words::elements(x[tile], 2 * i + 1);
#pragma unroll
          for (int half_block = 0; half_block < 2; half_block++) {
            multiply_accumulate<T>(sums[half_block][tile], left[half_block][i], right, next);
          }
        }
      }
    }
  }

  // Behind what all parts have read of the last stages.
  void share(const float (&sums)[2][TILES][4]) const {
    float* own = reinterpret_cast<float*>(shared_memory()) + part * kRows * kProductSumStride +
        warp % 2 * 32;
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
#pragma unroll
      for (int rows = 0; rows < TILES; rows++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = rows * 8 + lane % 4 * 2 + i % 2;
          own[row * kProductSumStride + tile * 16 + i / 2 * 8 + lane / 4] = sums[tile][rows][i];
        }
      }
    }
  }

  float shared_sum(int row, int output) const {
    const float* at =
        reinterpret_cast<const float*>(shared_memory()) + row * kProductSumStride + output;
    float sum = at[0];
#pragma unroll
    for (int other = 1; other < kProductParts; other++) {
      sum += at[other * kRows * kProductSumStride];
    }
    return sum;
  }

  // FUNCTION(row, output, place) for each of the tile's sums, those beyond the edges included.
  template <typename Function>
  static void for_each_sum(Function function) {
    for (int i = thread_index(); i < kRows * kProductOutputs; i += kProductThreads) {
      function(i / kProductOutputs, i % kProductOutputs, i);
    }
  }

  void store(int row, int output, float sum) const {
    if (first_row + row < p.num_rows && first_output + output < p.num_outputs) {
      static_cast<T*>(b.out)[int64_t(first_row + row) * p.num_outputs + first_output + output] =
          from_float<T>(sum);
    }
  }

  // Of this tile's splits the one that comes last, when the others' partials are in memory.
  void join_splits() const {
    constexpr int kSums = kRows * kProductOutputs;
    const int64_t tile = int64_t(block_position().y) * num_row_tiles() + block_position().x;
    float* partials = b.partials + tile * p.num_splits * kSums;
    for_each_sum([&](int row, int output, int place) {
      partials[block_position().z * kSums + place] = shared_sum(row, output);
    });
    if (!is_last_block(&b.counters[tile], p.num_splits)) {
      return;
    }
    for_each_sum([&](int row, int output, int place) {
      float sum = 0.0f;
      for (int split = 0; split < p.num_splits; split++) {
        sum += load_from_blocks(partials + split * kSums + place);
      }
      store(row, output, sum);
    });
  }

  int num_row_tiles() const {
    return (p.num_rows + kRows - 1) / kRows;
  }

  // One stage, while the next ones are under way.
  void take(
      float (&sums)[2][TILES][4],
      const ProductScales& scales,
      ProductScales& next,
      int stage,
      int last) const {
    wait_for_copies<kProductRing - 2>();
    // Everybody's copies are there, and nobody reads the stage before any more, whose place is free.
    sync_block();
    start_stage(stage + kProductRing - 1, last);
    load_scales(next, stage + 1);
    add(sums, scales, stage);
  }

  void run() const {
    const int first = block_position().z * p.stages_per_split;
    const int last =
        metal::min(first + p.stages_per_split, (num_chunks + kProductParts - 1) / kProductParts);
    float sums[2][TILES][4] = {};
    for (int ahead = 0; ahead < kProductRing - 1; ahead++) {
      start_stage(first + ahead, last);
    }
    ProductScales even, odd;
    load_scales(even, first);
    for (int stage = first; stage < last; stage += 2) {
      take(sums, even, odd, stage, last);
      if (stage + 1 < last) {
        take(sums, odd, even, stage + 1, last);
      }
    }
    sync_block();
    share(sums);
    sync_block();
    if (p.num_splits > 1) {
      join_splits();
    } else {
      for_each_sum([&](int row, int output, int) { store(row, output, shared_sum(row, output)); });
    }
  }
};

// Grid: (tiles of rows, tiles of outputs, splits).
template <typename T, int BITS, int TILES>
inline void quantized_product(
    const QuantizedProductParameters& p, const QuantizedProductBuffers& b) {
  QuantizedProduct<T, BITS, TILES>{p, b}.run();
}

} // namespace pomona
