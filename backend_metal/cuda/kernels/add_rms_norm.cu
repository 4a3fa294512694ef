// The sum of two rows, and that sum normalised: a block has one row.
//
// A thread owns every THREADS-th vector of 16 bytes. With CHUNKS of them it keeps the sum in registers
// while the block adds squares up; without, it reads what it has written. Bits are those of MLX's Add
// and rms_norm: values are rounded where these round them, and squares added in the same order.
#include <metal_stdlib>

#include "add_rms_norm_buffers.h"
#include "element_vectors.h"
#include "rounding.h"
#include "warp_sum.h"
#include "shaders/common/options.h"
#include "shaders/common/parameters.h"

namespace pomona {

template <typename T>
inline const T* row_of(const void* from, const ElementStrides& strides, int outer, int inner) {
  return static_cast<const T*>(from) + outer * strides.token + inner * strides.head;
}

template <typename T>
inline ElementVector<T> sum_of(const ElementVector<T>& a, const ElementVector<T>& b) {
  float elements[kVectorElements<T>];
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; i++) {
    elements[i] = element(a, i) + element(b, i);
  }
  return vector_of<T>(elements);
}

template <typename T>
inline float with_squares_of(float sum, const ElementVector<T>& vector) {
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; i++) {
    const float x = element(vector, i);
    sum += x * x;
  }
  return sum;
}

template <typename T>
inline ElementVector<T> scaled(
    const ElementVector<T>& vector, const ElementVector<T>& weight, float factor) {
  float elements[kVectorElements<T>];
#pragma unroll
  for (int i = 0; i < kVectorElements<T>; i++) {
    elements[i] = element(weight, i) * rounded_to<T>(element(vector, i) * factor);
  }
  return vector_of<T>(elements);
}

// Grid: (rows, 1, 1).
template <typename T, int THREADS, int CHUNKS = 0>
inline void add_rms_norm(const AddRmsNormParameters& p, const AddRmsNormBuffers& buffers) {
  using Vector = ElementVector<T>;
  const int row = block_position().x;
  const T* a = row_of<T>(buffers.a, p.a, row / p.inner, row % p.inner);
  const T* b = row_of<T>(buffers.b, p.b, row / p.inner, row % p.inner);
  const T* weight = static_cast<const T*>(buffers.weight);
  T* sum = static_cast<T*>(buffers.sum) + int64_t(row) * p.width;
  T* normed = static_cast<T*>(buffers.normed) + int64_t(row) * p.width;
  const int first = thread_index() * kVectorElements<T>;
  constexpr int kStep = THREADS * kVectorElements<T>;
  float squares = 0.0f;

  if constexpr (CHUNKS > 0) {
    Vector own[CHUNKS], other[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      own[i] = load_vector(a, p.a.dim, first + i * kStep, p.width, aligned);
      other[i] = load_vector(b, p.b.dim, first + i * kStep, p.width, aligned);
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      own[i] = sum_of(own[i], other[i]);
      squares = with_squares_of(squares, own[i]);
      // Under way while the block adds up.
      other[i] = load_vector(weight, p.weight, first + i * kStep, p.width, aligned);
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      store_vector(sum, own[i], first + i * kStep, p.width, aligned);
    }
    const float factor = rsqrtf(block_sum<THREADS>(squares) / p.width + p.epsilon);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      store_vector(
          normed, scaled(own[i], other[i], factor), first + i * kStep, p.width, aligned);
    }
  } else {
    for (int at = first; at < p.width; at += kStep) {
      const Vector both = sum_of(
          load_vector(a, p.a.dim, at, p.width, aligned),
          load_vector(b, p.b.dim, at, p.width, aligned));
      squares = with_squares_of(squares, both);
      store_vector(sum, both, at, p.width, aligned);
    }
    const float factor = rsqrtf(block_sum<THREADS>(squares) / p.width + p.epsilon);
    for (int at = first; at < p.width; at += kStep) {
      const Vector both = load_vector<T>(sum, 1, at, p.width, aligned);
      const Vector own_weight = load_vector(weight, p.weight, at, p.width, aligned);
      store_vector(normed, scaled(both, own_weight, factor), at, p.width, aligned);
    }
  }
}

} // namespace pomona
