// Reading and copying a few neighbouring elements of a row at once.
#pragma once

#include <metal_stdlib>

#include "options.h"

namespace pomona {

// Elements of 2 or 4 bytes, by the 32-bit word.
template <typename T>
struct Word {
  static constant constexpr const int kElements = 2;

  static uint load(const device T* from) {
    return as_type<uint>(metal::vec<T, 2>(from[0], from[1]));
  }
  static float element(uint word, int i) {
    metal::vec<T, 2> pair = as_type<metal::vec<T, 2>>(word);
    return float(pair[i]);
  }
};
template <>
struct Word<float> {
  static constant constexpr const int kElements = 1;

  static uint load(const device float* from) {
    return as_type<uint>(from[0]);
  }
  static float element(uint word, int) {
    return as_type<float>(word);
  }
};

// One load of 4, 8 or 16 bytes.
template <int WORDS>
inline void load_words(const device uint* from, thread uint (&words)[WORDS]);
template <>
inline void load_words<1>(const device uint* from, thread uint (&words)[1]) {
  words[0] = *from;
}
template <>
inline void load_words<2>(const device uint* from, thread uint (&words)[2]) {
  uint2 loaded = *reinterpret_cast<const device uint2*>(from);
  words[0] = loaded.x;
  words[1] = loaded.y;
}
template <>
inline void load_words<4>(const device uint* from, thread uint (&words)[4]) {
  uint4 loaded = *reinterpret_cast<const device uint4*>(from);
  words[0] = loaded.x;
  words[1] = loaded.y;
  words[2] = loaded.z;
  words[3] = loaded.w;
}

// N elements of T as they lie in memory: 4, 8 or 16 bytes. They are widened when they are used, so
// that those on their way take few registers.
template <typename T, int N>
struct Chunk {
  static constant constexpr const int kWords = N / Word<T>::kElements;
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "a lane reads 4, 8 or 16 bytes at once");
  uint words[kWords];

  float get(int i) const {
    return Word<T>::element(words[i / Word<T>::kElements], i % Word<T>::kElements);
  }
};

template <typename T, int N>
inline Chunk<T, N> load_chunk(const device T* from) {
  Chunk<T, N> chunk;
  if (aligned) {
    load_words<Chunk<T, N>::kWords>(reinterpret_cast<const device uint*>(from), chunk.words);
    return chunk;
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < Chunk<T, N>::kWords; i++) {
    chunk.words[i] = Word<T>::load(from + i * Word<T>::kElements);
  }
  return chunk;
}

// Elements of the widest chunk, up to 16 bytes, of which a multiple of `lanes` makes up `dim`.
template <typename T>
constexpr int chunk_width(int dim, int lanes) {
  return dim % (lanes * (16 / int(sizeof(T)))) == 0 ? 16 / int(sizeof(T))
      : (dim % (lanes * 4) == 0 ? 4 : 2);
}

} // namespace pomona
