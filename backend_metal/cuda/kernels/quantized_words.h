// Weights of 4 and of 8 bits on their way to tensor cores: a lane turns 16 bytes of two rows of a
// matrix into left sides of products, with no help from other lanes.
//
// A product sums over its depth in any order, so a lane's depths are those that it has loaded, as long
// as the right side has them in the same order.
#pragma once

#include "intrinsics.h"

namespace pomona {

// In both halves of a word.
template <typename T>
struct PairConstants;
template <>
struct PairConstants<half> {
  static constexpr unsigned kOne = 0x3c003c00;
  static constexpr unsigned kOffset = 0x64006400; // 1024, whose last bit counts 1
  static constexpr unsigned kMinusOffset = 0xe400e400;
};
template <>
struct PairConstants<bfloat> {
  static constexpr unsigned kOne = 0x3f803f80;
  static constexpr unsigned kOffset = 0x43004300; // 128, whose last bit counts 1
  static constexpr unsigned kMinusOffset = 0xc300c300;
};

// How a group's numbers become weights; in both halves.
struct PairScale {
  unsigned scale, bias;
};

// Of BITS bits, eight numbers of a row and the eight elements of x that they meet: pair i of numbers, as
// weights, and of elements. `hidden` is kConstant in a register that the compiler does not know to
// be one: it makes known ones anew for each instruction, which has no room for a second constant.
template <typename T, int BITS>
struct QuantizedWords;

template <typename T>
struct QuantizedWords<T, 4> {
  static constexpr int kWordsPerPiece = 1; // that have eight numbers
  static constexpr unsigned kConstant = 0x000f000f;

  // Numbers i and i + 4, since no more than a shift brings them where pairs are.
  static unsigned weights(const unsigned* words, int i, const PairScale& s, unsigned hidden) {
    using C = PairConstants<T>;
    const unsigned numbers = fused_pairs<T>(
        (*words >> 4 * i & hidden) | C::kOffset, C::kOne, C::kMinusOffset);
    return fused_pairs<T>(numbers, s.scale, s.bias);
  }

  static unsigned elements(const unsigned (&x)[4], int i) {
    return join_halves(x[i / 2], x[i / 2 + 2], i % 2);
  }
};

template <typename T>
struct QuantizedWords<T, 8> {
  static constexpr int kWordsPerPiece = 2;
  static constexpr unsigned kConstant = 0x4b000000; // of a float, 2^23, whose last bit counts 1

  // bfloat has room for them, but none for an offset beside them: that is a float's.
  static unsigned weights(const unsigned* words, int i, const PairScale& s, unsigned hidden) {
    const unsigned word = words[i / 2];
    const int byte = i % 2 * 2;
    const unsigned numbers = pack<T>(number(word, byte, hidden), number(word, byte + 1, hidden));
    return fused_pairs<T>(numbers, s.scale, s.bias);
  }

  static unsigned elements(const unsigned (&x)[4], int i) {
    return x[i];
  }

 private:
  static float number(unsigned word, int byte, unsigned hidden) {
    return float_of_bits(with_byte(hidden, word, byte)) - 8388608.0f;
  }
};

// Eight numbers of two rows as the left sides of two products.
template <typename Words>
inline void left_sides(
    unsigned (&left)[2][4],
    const unsigned* first,
    const unsigned* second,
    const PairScale& first_scale,
    const PairScale& second_scale,
    unsigned hidden) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    left[i / 2][i % 2 * 2] = Words::weights(first, i, first_scale, hidden);
    left[i / 2][i % 2 * 2 + 1] = Words::weights(second, i, second_scale, hidden);
  }
}

} // namespace pomona
