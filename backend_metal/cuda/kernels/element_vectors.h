// Neighbouring elements of one row, as many as 16 bytes hold, in a thread's registers.
#pragma once

#include <cstdint>

#include "intrinsics.h"
#include "rounding.h"

namespace pomona {

template <typename T>
constexpr int kVectorElements = 16 / sizeof(T);

template <typename T>
struct ElementVector {
  unsigned words[4];
};

template <typename T>
inline float element(const ElementVector<T>& vector, int i) {
  return to_float(T{static_cast<unsigned short>(vector.words[i / 2] >> (i % 2 * 16))});
}
inline float element(const ElementVector<float>& vector, int i) {
  return float_of_bits(vector.words[i]);
}

// Rounded to nearest, ties to even.
template <typename T>
inline ElementVector<T> vector_of(const float (&elements)[8]) {
  ElementVector<T> vector;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    vector.words[i] = pack<T>(elements[2 * i], elements[2 * i + 1]);
  }
  return vector;
}
template <typename T>
inline ElementVector<T> vector_of(const float (&elements)[4]) {
  ElementVector<T> vector;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    vector.words[i] = __float_as_uint(elements[i]);
  }
  return vector;
}

// Zeros behind the row's end. `whole`: each of its vectors is, and starts at a multiple of 16 bytes.
template <typename T>
inline ElementVector<T> load_vector(
    const T* row, int64_t stride, int first, int width, bool whole) {
  ElementVector<T> vector = {};
  if (whole) {
    if (first < width) {
      load_16_bytes(vector.words, row + first);
    }
    return vector;
  }
  float elements[kVectorElements<T>];
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; i++) {
    elements[i] = first + i < width ? to_float(row[(first + i) * stride]) : 0.0f;
  }
  return vector_of<T>(elements);
}

// Into a row whose elements are neighbours.
template <typename T>
inline void store_vector(
    T* row, const ElementVector<T>& vector, int first, int width, bool whole) {
  if (whole) {
    if (first < width) {
      store_16_bytes(row + first, vector.words);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorElements<T> && first + i < width; i++) {
    row[first + i] = from_float<T>(element(vector, i));
  }
}

} // namespace pomona
