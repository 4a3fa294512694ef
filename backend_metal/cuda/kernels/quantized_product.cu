// Products of rows with a quantized matrix, whose weights are unpacked into registers, straight into
// the left sides of tensor cores' products: out = x @ (scale * number + bias).T.
//
// A block owns kProductOutputs outputs and TILES * 8 rows, over one split of the depth. Of each stage
// of the depth its warps take parts: a warp two tiles of 16 outputs, over a chunk, of which a lane
// has 16 bytes of each of four rows of the matrix. Words and rows of x come through shared memory,
// some stages ahead: memory's latency is that of tens of KB on their way to each core. Scales stay
// in registers, a sector of each row spread over the four lanes that need it. At the end the parts
// are summed up, and the splits, in their order, by the block that ends last.
#include <metal_stdlib>

#include "product_splits.h"
#include "quantized_product_buffers.h"
#include "quantized_words.h"
#include "rounding.h"

#undef POMONA_LEAST_BLOCKS
#define POMONA_LEAST_BLOCKS , 3
#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

// For each of a lane's four rows of the matrix those of two groups. Four lanes side by side have
// those of a window of stages.
struct ProductScales {
  unsigned scales[4];
  unsigned biases[4];
};

template <typename T, int BITS, int TILES>
struct QuantizedProduct {
  static constexpr int kLaneElements = kProductLaneBytes * 8 / BITS;
  static constexpr int kChunk = 4 * kLaneElements;
  static constexpr int kPieces = kLaneElements / 8; // of 16 bytes of x, for each of a lane's words
  static constexpr int kStage = kProductParts * kChunk;
  static constexpr int kRows = TILES * 8;
  static constexpr int kRowBytes = kProductParts * kProductChunkBytes; // of the matrix, of a stage
  static constexpr int kWordBytes = kProductOutputs * kRowBytes;
  static constexpr int kChunkBytes = kChunk * sizeof(T); // of a row of x
  static constexpr int kStageBytes = kWordBytes + kProductParts * kRows * kChunkBytes;
  using Words = QuantizedWords<T, BITS>;

  const QuantizedProductParameters& p;
  const QuantizedProductBuffers& b;
  const int lane = thread_index() % 32;
  const int warp = thread_index() / 32;
  const int part = warp / 2;
  const int first_row = block_position().x * kRows;
  const int first_output = block_position().y * kProductOutputs;
  const int first_stage = block_position().z * p.stages_per_split;
  const int num_chunks = p.depth / kChunk;
  const int last_stage = metal::min(
      first_stage + p.stages_per_split, (num_chunks + kProductParts - 1) / kProductParts);
  const int num_groups = p.depth >> p.log2_group;
  const int last_output = p.num_outputs - 1;
  // Of the matrix's rows a lane has this one and each eighth behind it, as far as there are.
  const int own_output = metal::min(first_output + warp % 2 * 32 + lane / 4, last_output);
  // A window is of as many stages as the words of four lanes are enough for: only with groups of 32
  // at 4 bits a chunk needs two.
  const int has_two_words = BITS == 4 && p.log2_group == 5;
  const int log2_window = 2 - has_two_words;
  const bool has_scale_words = num_groups % 2 == 0 && is_word(b.scales) && is_word(b.biases);

  const unsigned hidden = Words::kConstant | (unsigned(p.depth) & 0x80000000u); // a sign of 0

  static bool is_word(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer) % 4 == 0;
  }

  // Of a stage in shared memory. What shares 128 bytes in memory does so here, too, so that copies
  // read whole sectors; what eight lanes load at once, of two rows, meets all banks.
  static int place_of_words(int row, int across) {
    return row * kRowBytes + (across ^ row % 2 * 4) * kProductLaneBytes;
  }
  static int place_of_x(int chunk, int row, int of_lane, int piece) {
    const int turn = kPieces == 4 ? row % 2 + of_lane / 2 * 2 : row % 2;
    return kWordBytes + (chunk * kRows + row) * kChunkBytes +
        (of_lane * kPieces + (piece ^ turn)) * 16;
  }

  // A thread's copies: of the words some rows apart, and of x.
  static constexpr int kWordsAcross = kRowBytes / kProductLaneBytes;
  static constexpr int kWordRows = kProductThreads / kWordsAcross; // at once
  const int across_words = thread_index() % kWordsAcross;
  const int copied_output =
      metal::min(first_output + int(thread_index()) / kWordsAcross, last_output);
  const int row_words = p.depth / (32 / BITS);
  const int to_words = place_of_words(thread_index() / kWordsAcross, across_words);

  static constexpr int kXAcross = kStage / 8;
  static constexpr int kXRows = kProductThreads / kXAcross;
  static_assert(kXRows <= 8 && kXRows % 2 == 0, "all rows of x that a thread copies turn alike");
  const int across_x = thread_index() % kXAcross;
  const int copied_row = first_row + thread_index() / kXAcross;
  const int to_x = place_of_x(
      across_x / (kChunk / 8),
      thread_index() / kXAcross,
      across_x % (kChunk / 8) / kPieces,
      across_x % kPieces);

  // What a lane multiplies, of its first rows. Other pieces of x differ in bits of their place.
  const int own_words =
      place_of_words(warp % 2 * 32 + lane / 4, part * (kWordsAcross / kProductParts) + lane % 4);
  const int own_x = place_of_x(part, lane / 4, lane % 4, 0);

  // Of the stage that is copied next.
  int copied_stage = first_stage;
  int copied_slot = 0;
  const unsigned* words_from = b.weights + int64_t(copied_output) * row_words +
      first_stage * (kRowBytes / 4) + across_words * (kProductLaneBytes / 4);
  const T* x_from = static_cast<const T*>(b.x) + int64_t(copied_row) * p.depth +
      first_stage * kStage + across_x * 8;

  // Rows that are not there are zeros in all stages.
  void clear_rows() const {
    for (int slot = 0; slot < kProductRing; slot++) {
#pragma unroll
      for (int i = 0; i < kRows; i += kXRows) {
        if (i >= p.num_rows - copied_row) {
          start_copy(shared_memory() + slot * kStageBytes + to_x + i * kChunkBytes, b.x, false);
        }
      }
    }
  }

  // Copies stand for a stage even where there is none any more, so that the latest are so many stages.
  void start_stage() {
    copy_words(0, copied_slot);
    copy_x(0, copied_slot);
    end_copies();
    go_on(1);
    copied_slot = copied_slot + 1 == kProductRing ? 0 : copied_slot + 1;
  }

  void go_on(int stages) {
    words_from += stages * (kRowBytes / 4);
    x_from += stages * kStage;
    copied_stage += stages;
  }

  // Of the stage that is so many ahead of the next one. Beyond the depth there are zeros, as in x.
  void copy_words(int ahead, int slot) const {
    const int stage = copied_stage + ahead;
    if (stage >= last_stage) {
      return;
    }
    unsigned char* to = shared_memory() + slot * kStageBytes + to_words;
    const unsigned* from = words_from + ahead * (kRowBytes / 4);
    const bool is_present =
        stage * kProductParts + across_words / (kWordsAcross / kProductParts) < num_chunks;
#pragma unroll
    for (int i = 0; i < kProductOutputs; i += kWordRows) {
      const int behind = metal::min(i, last_output - copied_output);
      start_copy(to + i * kRowBytes, strides_behind(from, behind, row_words), is_present);
    }
  }

  void copy_x(int ahead, int slot) const {
    const int stage = copied_stage + ahead;
    if (stage >= last_stage) {
      return;
    }
    unsigned char* to = shared_memory() + slot * kStageBytes + to_x;
    const T* from = x_from + ahead * kStage;
    const bool is_present = stage * kStage + across_x * 8 < p.depth;
#pragma unroll
    for (int i = 0; i < kRows; i += kXRows) {
      if (i < p.num_rows - copied_row) {
        start_copy(to + i * kChunkBytes, strides_behind(from, i, p.depth), is_present);
      }
    }
  }

  // Those of the window that a stage is in. Beyond the depth any are as good.
  void load_scales(ProductScales& to, int stage) const {
    const int own_stage = (stage >> log2_window << log2_window) + (lane % 4 >> has_two_words);
    const int depth = own_stage * kStage + part * kChunk + (lane & has_two_words) * (kChunk / 2);
    const int group = metal::min(depth >> p.log2_group, num_groups - 1) & ~1;
    const int64_t place = int64_t(own_output) * num_groups + group;
    const T* scales = static_cast<const T*>(b.scales) + place;
    const T* biases = static_cast<const T*>(b.biases) + place;
    if (has_scale_words) {
      load_scales(to, scales, biases, [](const T* from) {
        return *reinterpret_cast<const unsigned*>(from);
      });
    } else {
      const int next = metal::min(group + 1, num_groups - 1) - group;
      load_scales(to, scales, biases, [next](const T* from) {
        return join_halves(from->bits, from[next].bits, false);
      });
    }
  }

  template <typename Load>
  void load_scales(ProductScales& to, const T* scales, const T* biases, Load load) const {
#pragma unroll
    for (int row = 0; row < 4; row++) {
      const int behind = metal::min(8 * row, last_output - own_output);
      to.scales[row] = load(strides_behind(scales, behind, num_groups));
      to.biases[row] = load(strides_behind(biases, behind, num_groups));
    }
  }

  // A stage's, from the lane that has them.
  void share_scales(PairScale (&to)[4], const ProductScales& from, int stage) const {
    const int of_lane = lane % 4;
    const int loader =
        lane - of_lane + (has_two_words ? stage % 2 * 2 + of_lane / 2 : stage % 4);
    const int depth = stage * kStage + part * kChunk + of_lane * kLaneElements;
    const bool is_second = depth >> p.log2_group & 1;
#pragma unroll
    for (int row = 0; row < 4; row++) {
      const unsigned scale = shuffle(from.scales[row], loader);
      const unsigned bias = shuffle(from.biases[row], loader);
      to[row] = {join_halves(scale, scale, is_second), join_halves(bias, bias, is_second)};
    }
  }

  void add(float (&sums)[2][TILES][4], const PairScale (&scales)[4], int slot) const {
    const unsigned char* memory = shared_memory() + slot * kStageBytes;
    unsigned words[4][4];
#pragma unroll
    for (int row = 0; row < 4; row++) {
      load_words(words[row], memory + own_words + row * 8 * kRowBytes);
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; piece++) {
      const unsigned char* piece_of_x = memory + (own_x ^ piece * 16);
      unsigned x[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        load_words(x[tile], piece_of_x + tile * 8 * kChunkBytes);
      }
      unsigned left[2][2][4];
#pragma unroll
      for (int half_block = 0; half_block < 2; half_block++) {
        const int word = piece * Words::kWordsPerPiece, row = half_block * 2;
        left_sides<Words>(
            left[half_block],
            &words[row][word],
            &words[row + 1][word],
            scales[row],
            scales[row + 1],
            hidden);
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

  // Of the tile [kRows, kProductOutputs].
  float shared_sum(int place) const {
    const float* at = reinterpret_cast<const float*>(shared_memory()) +
        place / kProductOutputs * kProductSumStride + place % kProductOutputs;
    float sum = at[0];
#pragma unroll
    for (int other = 1; other < kProductParts; other++) {
      sum += at[other * kRows * kProductSumStride];
    }
    return sum;
  }

  void store(int place, float sum) const {
    const int row = first_row + place / kProductOutputs;
    const int output = first_output + place % kProductOutputs;
    if (row < p.num_rows && output < p.num_outputs) {
      static_cast<T*>(b.out)[int64_t(row) * p.num_outputs + output] = from_float<T>(sum);
    }
  }

  void finish() const {
    constexpr int kSums = kRows * kProductOutputs;
    const auto sum_of = [&](int place) { return shared_sum(place); };
    const auto store_sum = [&](int place, float sum) { store(place, sum); };
    if (p.num_splits > 1) {
      const int row_tiles = (p.num_rows + kRows - 1) / kRows;
      const int64_t tile = int64_t(block_position().y) * row_tiles + block_position().x;
      join_splits<kSums, kProductThreads>(
          b.partials + tile * p.num_splits * kSums,
          b.counters + tile,
          block_position().z,
          p.num_splits,
          sum_of,
          store_sum);
      return;
    }
    for (int place = thread_index(); place < kSums; place += kProductThreads) {
      store_sum(place, sum_of(place));
    }
  }

  void run() {
    float sums[2][TILES][4] = {};
    let_next_begin();
    if (!p.reads_ahead) {
      wait_for_kernels_before();
    }
    // Of the matrix, while the kernel before may still run.
    ProductScales window, next_window;
    load_scales(next_window, first_stage);
    for (int ahead = 0; ahead < kProductRing - 1; ahead++) {
      copy_words(ahead, ahead);
    }
    clear_rows();
    wait_for_kernels_before();
    for (int ahead = 0; ahead < kProductRing - 1; ahead++) {
      copy_x(ahead, ahead);
      end_copies();
    }
    go_on(kProductRing - 1);
    copied_slot = kProductRing - 1;
    int slot = 0;
    for (int stage = first_stage; stage < last_stage; stage++) {
      wait_for_copies<kProductRing - 2>();
      // Everybody's copies are there, and nobody reads the stage before any more, whose place is free.
      sync_block();
      start_stage();
      const int next_start = ((stage >> log2_window) + 1) << log2_window;
      if (stage == first_stage || next_start - stage == 1 << log2_window) {
        window = next_window;
        if (next_start < last_stage) {
          load_scales(next_window, next_start);
        }
      }
      PairScale scales[4];
      share_scales(scales, window, stage);
      add(sums, scales, slot);
      slot = slot + 1 == kProductRing ? 0 : slot + 1;
    }
    sync_block();
    share(sums);
    sync_block();
    finish();
  }
};

// Grid: (tiles of rows, tiles of outputs, splits).
template <typename T, int BITS, int TILES>
inline void quantized_product(
    const QuantizedProductParameters& p, const QuantizedProductBuffers& b) {
  QuantizedProduct<T, BITS, TILES>{p, b}.run();
}

} // namespace pomona
