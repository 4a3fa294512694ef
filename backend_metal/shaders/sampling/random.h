// Random words of tokens, those that mx.random.bits gives for a whole vocabulary: Threefry-2x32 of
// 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), of which one call
// makes the words of a token in the first half of the vocabulary and of one in the second.
#pragma once

#include <metal_stdlib>

namespace pomona {

struct RandomWords {
  uint first, second;
};

inline uint rotate_left(uint word, int bits) {
  return word << bits | word >> (32 - bits);
}

inline void mix(thread RandomWords& x, int a, int b, int c, int d) {
  const int bits[4] = {a, b, c, d};
  for (int i = 0; i < 4; i++) {
    x.first += x.second;
    x.second = rotate_left(x.second, bits[i]) ^ x.first;
  }
}

inline RandomWords threefry(uint key0, uint key1, RandomWords x) {
  const uint keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
  x.first += keys[0];
  x.second += keys[1];
  for (int group = 0; group < 5; group++) {
    if (group % 2 == 0) {
      mix(x, 13, 15, 26, 6);
    } else {
      mix(x, 17, 29, 16, 24);
    }
    x.first += keys[(group + 1) % 3];
    x.second += keys[(group + 2) % 3] + group + 1;
  }
  return x;
}

// Tokens that share a call: `pair` of the first half of a vocabulary and `pair + distance` of the
// second. The middle one of an odd vocabulary is alone, with 0 for the other.
struct TokenPairs {
  int distance;
  int vocab_size;

  bool has_second(int pair) const {
    return pair + distance < vocab_size;
  }
};

inline TokenPairs pairs_of(int vocab_size) {
  return {vocab_size - vocab_size / 2, vocab_size};
}

inline RandomWords words_of_pair(uint key0, uint key1, TokenPairs pairs, int pair) {
  RandomWords counters = {uint(pair), pairs.has_second(pair) ? uint(pair + pairs.distance) : 0u};
  return threefry(key0, key1, counters);
}

inline uint word_of_token(uint key0, uint key1, TokenPairs pairs, int token) {
  bool in_second = token >= pairs.distance;
  RandomWords words =
      words_of_pair(key0, key1, pairs, in_second ? token - pairs.distance : token);
  return in_second ? words.second : words.first;
}

} // namespace pomona
