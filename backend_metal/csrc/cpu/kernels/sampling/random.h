// Random words of tokens, those that mx.random.bits gives for a whole vocabulary: Threefry-2x32 of
// 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), of which one call
// makes the words of a token in the first half of the vocabulary and of one in the second.
#pragma once

#include "cpu/kernels/simd.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

struct Words {
  UInts first, second;
};

inline UInts fill_word(uint32_t x) {
  return UInts{} + x;
}

template <int Left>
inline void mix(Words& x) {
  x.first += x.second;
  x.second = (x.second << Left) | (x.second >> (32 - Left));
  x.second ^= x.first;
}

inline Words threefry(const uint32_t* key, Words x) {
  const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  x.first += keys[0];
  x.second += keys[1];
#pragma GCC unroll 5
  for (uint32_t group = 0; group < 5; group++) {
    if (group % 2 == 0) {
      mix<13>(x);
      mix<15>(x);
      mix<26>(x);
      mix<6>(x);
    } else {
      mix<17>(x);
      mix<29>(x);
      mix<16>(x);
      mix<24>(x);
    }
    x.first += keys[(group + 1) % 3];
    x.second += keys[(group + 2) % 3] + group + 1;
  }
  return x;
}

// The halves of a vocabulary: token i of the first goes with i + distance; the middle one of an odd
// vocabulary with nobody, and its second counter is 0.
struct VocabularyHalves {
  uint32_t half, distance;

  explicit VocabularyHalves(int64_t vocab_size)
      : half(uint32_t(vocab_size / 2)), distance(uint32_t(vocab_size - vocab_size / 2)) {}
};

// Words of the tokens of each lane.
inline UInts random_words(const uint32_t* key, VocabularyHalves halves, UInts ids) {
  UInts in_second = (UInts)(ids >= halves.distance);
  UInts is_middle = (UInts)(ids >= halves.half) & ~in_second;
  UInts first = ids - (in_second & halves.distance);
  UInts second = (first + halves.distance) & ~is_middle;
  Words words = threefry(key, {first, second});
  return (in_second & words.second) | (~in_second & words.first);
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
