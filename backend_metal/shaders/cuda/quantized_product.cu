// Products of rows with a quantized matrix, whose weights are unpacked into registers, straight into
// the left sides of tensor cores' products: out = x @ (scale * number + bias).T.
//
// A block owns kProductOutputs outputs and TILES * 8 rows, over one split of the depth. Of each stage
// of the depth its warps take parts: a warp two tiles of 16 outputs, over a chunk, of which a lane
// has 16 bytes of each of four rows of the matrix. Rows of x come through shared memory, a stage
// ahead, as they are in memory but for where their pieces of eight elements lie. At the end the parts
// are summed up, and the splits, in their order, by the block that ends last.
#include <metal_stdlib>

#include "cuda/quantized_product_buffers.h"
#include "cuda/quantized_words.h"
#include "cuda/rounding.h"

#undef POMONA_LEAST_BLOCKS
#define POMONA_LEAST_BLOCKS , 3

namespace pomona {

// Of a lane: its chunk's words of two tiles' rows, and of each row its scale and its bias. All are
// under way, so that whatever is made of them is made only when they are used.
struct ProductWeights {
  unsigned words[2][2][4];
  unsigned short scales[2][2];
  unsigned short biases[2][2];
};

template <typename T, int BITS, int TILES>
struct QuantizedProduct {
  static constexpr int kLaneElements = kProductLaneBytes * 8 / BITS;
  static constexpr int kChunk = 4 * kLaneElements;
  static constexpr int kPieces = kLaneElements / 8; // of 16 bytes of x, for each of a lane's words
  static constexpr int kStage = kProductParts * kChunk;
  static constexpr int kRows = TILES * 8;
  static constexpr int kStageElements = kStage * kRows;
  using Words = QuantizedWords<T, BITS>;

  const QuantizedProductParameters& p;
  const QuantizedProductBuffers& b;
  const int lane = thread_index() % 32;
  const int warp = thread_index() / 32;
  const int part = warp / 2;
  const int first_row = block_position().x * kRows;
  const int first_output = block_position().y * kProductOutputs;
  const int num_chunks = p.depth / kChunk;
  T* const stages = reinterpret_cast<T*>(shared_memory());

  // Where a chunk's piece of eight rows of x lies in a stage's memory, and a row's part of that. What
  // the lanes of a warp read at once is 512 bytes in a row, and what eight threads write at once
  // meets all banks.
  static constexpr int place(int chunk, int piece, int tile) {
    return ((chunk * kPieces + piece) * TILES + tile) * 32 * 8;
  }
  static int place_within(int piece, int slot) {
    return (slot ^ (piece * (8 / kPieces))) * 8;
  }

  // All that a thread copies is of one piece of the stage.
  void start_stage(int stage, int buffer) const {
    constexpr int kAcross = kStage / 8, kRowsAtOnce = kProductThreads / kAcross;
    static_assert(kRowsAtOnce <= 8 && kRows % kRowsAtOnce == 0, "rows of a tile, one after another");
    const int across = thread_index() % kAcross, row = thread_index() / kAcross;
    const int within = across % (kChunk / 8);
    const int piece = within % kPieces;
    const int depth = stage * kStage + across * 8;
    T* to = stages + buffer * kStageElements + place(across / (kChunk / 8), piece, 0) +
        place_within(piece, row * 4 + within / kPieces);
    const T* from = static_cast<const T*>(b.x) + int64_t(first_row + row) * p.depth + depth;
    const int last = depth < p.depth ? p.num_rows - first_row - row : 0;
#pragma unroll
    for (int i = 0; i < kRows; i += kRowsAtOnce) {
      start_copy(
          to + place(0, 0, i / 8) + i % 8 * 4 * 8,
          strides_behind(from, i, p.depth),
          i < last);
    }
  }

  // Of the matrix's rows a lane has the first of its own and each eighth behind that.
  void load(ProductWeights& weights, int chunk) const {
    const int last = p.num_outputs - 1;
    const int first = metal::min(first_output + warp % 2 * 32 + lane / 4, last);
    const int depth = chunk * kChunk + lane % 4 * kLaneElements;
    const int row_words = p.depth / (32 / BITS), row_groups = p.depth >> p.log2_group;
    const unsigned* words = b.weights + int64_t(first) * row_words + depth / (32 / BITS);
    const int64_t group = int64_t(first) * row_groups + (depth >> p.log2_group);
    const T* scales = static_cast<const T*>(b.scales) + group;
    const T* biases = static_cast<const T*>(b.biases) + group;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int behind = metal::min(8 * i, last - first);
      load_words_once(weights.words[i / 2][i % 2], strides_behind(words, behind, row_words));
      weights.scales[i / 2][i % 2] = strides_behind(scales, behind, row_groups)->bits;
      weights.biases[i / 2][i % 2] = strides_behind(biases, behind, row_groups)->bits;
    }
  }

  static PairScale scale_of(const ProductWeights& weights, int tile, int half_tile) {
    const unsigned scale = weights.scales[tile][half_tile], bias = weights.biases[tile][half_tile];
    return {join_halves(scale, scale, false), join_halves(bias, bias, false)};
  }

  void add(float (&sums)[2][TILES][4], const ProductWeights& weights, int buffer) const {
    const T* from = stages + buffer * kStageElements + place(part, 0, 0);
#pragma unroll
    for (int piece = 0; piece < kPieces; piece++) {
      unsigned left[2][2][4];
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        const int word = piece * Words::kWordsPerPiece;
        Words::left_sides(
            left[tile],
            &weights.words[tile][0][word],
            &weights.words[tile][1][word],
            scale_of(weights, tile, 0),
            scale_of(weights, tile, 1));
      }
      const T* own = from + place(0, piece, 0) + place_within(piece, lane);
      unsigned x[2][4];
      load_words(x[0], own);
#pragma unroll
      for (int rows = 0; rows < TILES; rows++) {
        if (rows + 1 < TILES) {
          load_words(x[(rows + 1) % 2], own + place(0, 0, rows + 1));
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const unsigned right = Words::right(x[rows % 2], 2 * i);
          const unsigned next = Words::right(x[rows % 2], 2 * i + 1);
#pragma unroll
          for (int tile = 0; tile < 2; tile++) {
            multiply_accumulate<T>(sums[tile][rows], left[tile][i], right, next);
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

  // One stage, while the next one is under way.
  void take(
      float (&sums)[2][TILES][4],
      const ProductWeights& weights,
      ProductWeights& next,
      int buffer,
      int stage,
      int last) const {
    wait_for_copies<0>();
    // Everybody's copies are there, and nobody reads the other buffer any more.
    sync_block();
    if (stage + 1 < last) {
      start_stage(stage + 1, 1 - buffer);
      end_copies();
      load(next, chunk_of(stage + 1));
    }
    if (stage * kProductParts + part < num_chunks) {
      add(sums, weights, buffer);
    }
  }

  void run() const {
    const int first = block_position().z * p.stages_per_split;
    const int last =
        metal::min(first + p.stages_per_split, (num_chunks + kProductParts - 1) / kProductParts);
    float sums[2][TILES][4] = {};
    ProductWeights even, odd;
    start_stage(first, 0);
    end_copies();
    load(even, chunk_of(first));
    for (int stage = first; stage < last; stage += 2) {
      take(sums, even, odd, 0, stage, last);
      if (stage + 1 < last) {
        take(sums, odd, even, 1, stage + 1, last);
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

  // This warp's of a stage; where there is none, any.
  int chunk_of(int stage) const {
    return metal::min(stage * kProductParts + part, num_chunks - 1);
  }
};

// Grid: (tiles of rows, tiles of outputs, splits).
template <typename T, int BITS, int TILES>
inline void quantized_product(
    const QuantizedProductParameters& p, const QuantizedProductBuffers& b) {
  QuantizedProduct<T, BITS, TILES>{p, b}.run();
}

} // namespace pomona
