// The shipped intrinsics.h, for a CPU: a block's threads are fibers, and whatever a warp does together
// is a meeting point, so an operation that some lane leaves out is an error.
//
// Copies into shared memory end when they are waited for and no sooner.
#pragma once

#include <block.h>
#include "elements.h"

#define POMONA_BEGIN pomona::begin_behind_others();

#define POMONA_KERNEL(NAME, THREADS, PARAMETERS, BUFFERS, ...)                     \
  extern "C" const size_t pomona_argument_bytes[2] = {sizeof(PARAMETERS), sizeof(BUFFERS)}; \
  extern "C" const int pomona_threads = THREADS;                                   \
  extern "C" void pomona_kernel(void** arguments) {                                \
    POMONA_BEGIN                                                                   \
    __VA_ARGS__(                                                                   \
        *static_cast<const PARAMETERS*>(arguments[0]),                             \
        *static_cast<const BUFFERS*>(arguments[1]));                               \
  }                                                                                \
  extern "C" void pomona_run(const cuda_on_cpu::Launch& launch) {                  \
    cuda_on_cpu::run(launch, &pomona_kernel);                                      \
  }

inline float __expf(float x) {
  return std::exp(x);
}

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}

inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}

namespace pomona {

using cuda_on_cpu::current_block;

struct Position {
  int x, y, z;
};

// Launches run one after another. A thread that ended without waiting would let kernels behind come
// before those that it has not waited for are done.
inline void let_next_begin() {}
inline void wait_for_kernels_before() {
  current_block().wait_for_kernels_before();
}

inline void begin_behind_others() {
  let_next_begin();
  wait_for_kernels_before();
}

inline Position block_position() {
  auto& at = current_block().position;
  return {at[0], at[1], at[2]};
}

inline int thread_index() {
  return current_block().current;
}

inline unsigned char* shared_memory() {
  return current_block().shared;
}

inline void sync_block() {
  current_block().meet_block();
}

inline void sync_warp() {
  current_block().exchange({}, "sync_warp");
}

inline void sync_some(int barrier, int threads) {
  current_block().meet_some(barrier, threads, true);
}

template <typename T>
inline T* strides_behind(T* from, int index, int stride) {
  return from + int64_t(index) * stride;
}

inline unsigned add_shared(unsigned* to, unsigned value) {
  unsigned before = *to;
  *to += value;
  return before;
}

inline float shuffle(float value, int lane) {
  auto words = current_block().exchange({std::bit_cast<uint32_t>(value)}, "shuffle");
  return std::bit_cast<float>(uint32_t(words[lane][0]));
}

inline unsigned shuffle(unsigned value, int lane) {
  return unsigned(current_block().exchange({value}, "shuffle")[lane][0]);
}

inline float shuffle_xor(float value, int mask) {
  return shuffle(value, (thread_index() % 32) ^ mask);
}

inline unsigned vote(bool yes) {
  auto words = current_block().exchange({yes}, "vote");
  unsigned lanes = 0;
  for (int lane = 0; lane < 32; lane++) {
    lanes |= unsigned(words[lane][0]) << lane;
  }
  return lanes;
}

inline unsigned largest_of_warp(unsigned word) {
  auto words = current_block().exchange({word}, "largest_of_warp");
  for (const auto& of_lane : words) {
    word = std::max(word, unsigned(of_lane[0]));
  }
  return word;
}

inline unsigned sum_of_warp(unsigned word) {
  auto words = current_block().exchange({word}, "sum_of_warp");
  word = 0;
  for (const auto& of_lane : words) {
    word += unsigned(of_lane[0]);
  }
  return word;
}

inline unsigned smallest_of_warp(unsigned word) {
  auto words = current_block().exchange({word}, "smallest_of_warp");
  for (const auto& of_lane : words) {
    word = std::min(word, unsigned(of_lane[0]));
  }
  return word;
}

inline int count_bits(unsigned word) {
  return std::popcount(word);
}

inline float power_of_two(float x) {
  return std::exp2(x);
}

inline float to_float(float value) {
  return value;
}
inline float to_float(half value) {
  return float(std::bit_cast<_Float16>(value.bits));
}
inline float to_float(bfloat value) {
  return std::bit_cast<float>(uint32_t(value.bits) << 16);
}

inline unsigned short rounded(float value, half) {
  return std::bit_cast<unsigned short>(_Float16(value));
}
inline unsigned short rounded(float value, bfloat) {
  auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) {
    return 0x7fff;
  }
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <typename T>
inline unsigned pack(float low, float high) {
  return rounded(low, T{}) | unsigned(rounded(high, T{})) << 16;
}

inline void read_matrices(unsigned (&words)[4], const void* row, bool transposed) {
  auto& block = current_block();
  block.check_shared(row, 16);
  auto rows = block.exchange({reinterpret_cast<uint64_t>(row)}, "load_matrices");
  int lane = thread_index() % 32, first = lane % 4 * 2;
  for (int i = 0; i < 4; i++) {
    auto element = [&](int r, int column) {
      return unsigned(reinterpret_cast<const unsigned short*>(rows[i * 8 + r][0])[column]);
    };
    words[i] = transposed ? element(first, lane / 4) | element(first + 1, lane / 4) << 16
                          : element(lane / 4, first) | element(lane / 4, first + 1) << 16;
  }
  // Whoever writes these rows next does so after all lanes have read them.
  block.exchange({}, "load_matrices, read");
}

inline void load_matrices(unsigned (&words)[4], const void* row) {
  read_matrices(words, row, false);
}

inline void load_transposed(unsigned (&words)[4], const void* row) {
  read_matrices(words, row, true);
}

template <typename T>
inline void multiply_accumulate(
    float (&sum)[4], const unsigned (&left)[4], unsigned right, unsigned next) {
  auto lanes = current_block().exchange(
      {left[0], left[1], left[2], left[3], right, next}, "multiply_accumulate");
  auto element = [](uint64_t word, int high) {
    T value;
    value.bits = word >> (16 * high);
    return to_float(value);
  };
  int lane = thread_index() % 32;
  for (int i = 0; i < 4; i++) {
    int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      // As the shipped header lays them out.
      int left_word = row / 8 + k / 8 * 2, left_lane = row % 8 * 4 + k % 8 / 2;
      int right_word = 4 + k / 8, right_lane = column * 4 + k % 8 / 2;
      sum[i] += element(lanes[left_lane][left_word], k % 2) *
          element(lanes[right_lane][right_word], k % 2);
    }
  }
}

inline void copy_16_bytes(void* to, const void* from) {
  current_block().check_global(to);
  current_block().check_global(from);
  std::memcpy(to, from, 16);
}

inline void load_floats(float (&to)[4], const float* from) {
  current_block().check_global(from);
  std::memcpy(to, from, 16);
}

template <typename T>
inline void load_four(float (&to)[4], const T* from) {
  current_block().check_global(from, 4 * sizeof(T));
  for (int i = 0; i < 4; i++) {
    to[i] = to_float(from[i]);
  }
}

inline void load_floats(float (&to)[2], const float* from) {
  current_block().check_global(from, 8);
  std::memcpy(to, from, 8);
}

inline void load_floats(float (&to)[1], const float* from) {
  to[0] = *from;
}

inline void store_floats(float* to, const float (&from)[4]) {
  current_block().check_global(to);
  std::memcpy(to, from, 16);
}

inline void store_floats(float* to, const float (&from)[1]) {
  *to = from[0];
}

inline void load_words(unsigned (&to)[4], const void* from) {
  current_block().check_shared(from, 16);
  std::memcpy(to, from, 16);
}

inline void store_words(void* to, const unsigned (&from)[4]) {
  current_block().check_shared(to, 16);
  std::memcpy(to, from, 16);
}

inline float float_of_bits(unsigned bits) {
  return std::bit_cast<float>(bits);
}

inline unsigned join_halves(unsigned low, unsigned high, bool upper) {
  return upper ? low >> 16 | (high & 0xffff0000u) : (low & 0xffff) | high << 16;
}

inline unsigned with_byte(unsigned word, unsigned from, int byte) {
  return (word & ~0xffu) | (from >> 8 * byte & 0xff);
}

template <typename T>
inline unsigned fused_pairs(unsigned left, unsigned right, unsigned addend) {
  unsigned result = 0;
  for (int shift : {0, 16}) {
    auto element = [shift](unsigned word) {
      T value;
      value.bits = word >> shift;
      return double(to_float(value));
    };
    float sum = float(element(left) * element(right) + element(addend));
    result |= unsigned(rounded(sum, T{})) << shift;
  }
  return result;
}

inline bool is_last_block(unsigned* counter, unsigned blocks) {
  static bool is_last; // blocks run one after another
  current_block().meet_block();
  if (thread_index() == 0) {
    is_last = ++*counter == blocks;
    if (is_last) {
      *counter = 0;
    }
  }
  current_block().meet_block();
  return is_last;
}

inline float load_from_blocks(const float* from) {
  return *from;
}

inline void load_pair_from_blocks(float (&to)[2], const float* from) {
  to[0] = from[0], to[1] = from[1];
}

// A cluster's blocks are one behind another along z, and run so.
inline void meet_cluster() {
  current_block().meet_cluster();
}

inline void store_to_block(int rank, float* own, float value) {
  current_block().store_to_block(rank, own, value);
}

inline void load_16_bytes(unsigned (&to)[4], const void* from) {
  current_block().check_global(from);
  std::memcpy(to, from, 16);
}

inline void store_16_bytes(void* to, const unsigned (&from)[4]) {
  current_block().check_global(to);
  std::memcpy(to, from, 16);
}

inline void start_copy(void* to, const void* from, bool present) {
  current_block().start_copy(to, from, present);
}

inline void end_copies() {
  current_block().end_copies();
}

template <int N>
inline void wait_for_copies() {
  current_block().wait_for_copies(N);
}

} // namespace pomona
