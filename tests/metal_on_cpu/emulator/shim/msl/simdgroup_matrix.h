// metal_simdgroup_matrix: 8x8 matrices, two neighbouring elements of a row in each lane.
#pragma once

namespace metal {

template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "Metal has 8x8 only");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    uint r = row(msl_lane()), c = column(msl_lane());
    for (uint k = 0; k < 2; k++) {
      elements.s[k] = r == c + k ? diagonal : T(0);
    }
  }

  // The lanes' places, which kernels that use thread_elements() rely on.
  static constexpr uint row(uint lane) {
    return lane / 16 * 4 + lane / 2 % 4;
  }
  static constexpr uint column(uint lane) {
    return lane / 8 % 2 * 4 + lane % 2 * 2;
  }
  static constexpr uint lane_of(uint row, uint column) {
    return row / 4 * 16 + column / 4 * 8 + row % 4 * 2 + column % 4 / 2;
  }

  MSL_THREAD vec<T, 2>& thread_elements() MSL_THREAD {
    return elements;
  }
  const MSL_THREAD vec<T, 2>& thread_elements() const MSL_THREAD {
    return elements;
  }
};
#define X(T) typedef simdgroup_matrix<T, 8, 8> simdgroup_##T##8x8;
MSL_FLOATS(X)
#undef X

template <class T, int R, int C = R>
MSL_FUNC simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> m;
  m.elements = vec<T, 2>(value, value);
  return m;
}

#define X(SPACE)                                                                              \
  template <class T, int R, int C>                                                            \
  MSL_FUNC void simdgroup_load(                                                               \
      MSL_THREAD simdgroup_matrix<T, R, C>& m,                                                \
      const SPACE T* source,                                                                  \
      ulong elements_per_row = 8,                                                             \
      vec<ulong, 2> origin = vec<ulong, 2>(0),                                                \
      bool transpose = false,                                                                 \
      MSL_SITE) {                                                                             \
    msl_meet(MSL_OPERATION("simdgroup_load"), MSL_HERE);                                      \
    uint r = m.row(msl_lane()), c = m.column(msl_lane());                                     \
    source += origin.s[1] * elements_per_row + origin.s[0];                                   \
    for (uint k = 0; k < 2; k++) {                                                            \
      m.elements.s[k] = transpose ? source[(c + k) * elements_per_row + r]                    \
                                  : source[r * elements_per_row + c + k];                     \
    }                                                                                         \
  }                                                                                           \
  template <class T, int R, int C>                                                            \
  MSL_FUNC void simdgroup_store(                                                              \
      simdgroup_matrix<T, R, C> m,                                                            \
      SPACE T* target,                                                                        \
      ulong elements_per_row = 8,                                                             \
      vec<ulong, 2> origin = vec<ulong, 2>(0),                                                \
      bool transpose = false,                                                                 \
      MSL_SITE) {                                                                             \
    msl_meet(MSL_OPERATION("simdgroup_store"), MSL_HERE);                                     \
    uint r = m.row(msl_lane()), c = m.column(msl_lane());                                     \
    target += origin.s[1] * elements_per_row + origin.s[0];                                   \
    for (uint k = 0; k < 2; k++) {                                                            \
      (transpose ? target[(c + k) * elements_per_row + r]                                     \
                 : target[r * elements_per_row + c + k]) = m.elements.s[k];                   \
    }                                                                                         \
  }
X(MSL_DEVICE) X(MSL_THREADGROUP)
#undef X

template <class A, class B>
struct msl_operands {
  vec<A, 2> a;
  vec<B, 2> b;
};

// d = a * b + c, accumulated in float, one product after another.
template <class D, class A, class B, class S>
MSL_FUNC void simdgroup_multiply_accumulate(
    MSL_THREAD simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<S, 8, 8> c,
    MSL_SITE) {
  using Operands = msl_operands<A, B>;
  ulong slots = msl_lane_slots();
  uint row = d.row(msl_lane()), column = d.column(msl_lane());
  msl_put<Operands>(slots, msl_lane(), Operands{a.elements, b.elements});
  msl_meet(MSL_OPERATION("simdgroup_multiply_accumulate"), MSL_HERE);
  float sum0 = (float)c.elements.s[0], sum1 = (float)c.elements.s[1];
  for (uint k = 0; k < 8; k++) {
    float left = (float)msl_get<Operands>(slots, d.lane_of(row, k)).a.s[k % 2];
    vec<B, 2> right = msl_get<Operands>(slots, d.lane_of(k, column)).b;
    sum0 = __builtin_fmaf(left, (float)right.s[0], sum0);
    sum1 = __builtin_fmaf(left, (float)right.s[1], sum1);
  }
  d.elements.s[0] = (D)sum0;
  d.elements.s[1] = (D)sum1;
}
template <class D, class A, class B>
MSL_FUNC void simdgroup_multiply(
    MSL_THREAD simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    MSL_SITE) {
  auto zero = make_filled_simdgroup_matrix<float, 8, 8>(0.f);
  simdgroup_multiply_accumulate(d, a, b, zero, line_, file_);
}

} // namespace metal
