// Compiler-private functions that MLX's headers call for bfloat.
#pragma once

#define X(name, ...)                                \
  MSL_FUNC float __metal_##name(float x, int = 0) { \
    return metal::name(x);                          \
  }
MSL_UNARY(X) X(exp10) X(fract) X(rsqrt) X(cospi) X(sinpi) X(tanpi)
#undef X
#define X(name)                                              \
  MSL_FUNC float __metal_##name(float x, float y, int = 0) { \
    return metal::name(x, y);                                \
  }
X(atan2) X(divide) X(fmax) X(fmin) X(fmod) X(pow) X(powr) X(nextafter)
#undef X
MSL_FUNC float __metal_fma(float a, float b, float c) {
  return metal::fma(a, b, c);
}
MSL_FUNC float __metal_ldexp(float x, int e, int = 0) {
  return metal::ldexp(x, e);
}
MSL_FUNC float __metal_fmax3(float a, float b, float c, int = 0) {
  return metal::max3(a, b, c);
}
MSL_FUNC float __metal_fmin3(float a, float b, float c, int = 0) {
  return metal::min3(a, b, c);
}
MSL_FUNC float __metal_fmedian3(float a, float b, float c, int = 0) {
  return metal::median3(a, b, c);
}
template <class T>
MSL_FUNC float __metal_frexp(float x, T exponent) {
  int e;
  float r = __builtin_frexpf(x, &e);
  *exponent = e;
  return r;
}

MSL_FUNC ushort __metal_get_simdgroup_size(ushort) {
  return 32;
}
#define X(name)                                    \
  template <class T>                               \
  MSL_FUNC T __metal_##name(T value, ushort lane) { \
    return metal::name(value, lane);               \
  }
X(simd_broadcast) X(simd_shuffle) X(simd_shuffle_down) X(simd_shuffle_up)
X(simd_shuffle_rotate_down) X(simd_shuffle_rotate_up) X(simd_shuffle_xor)
#undef X
#define X(name)                                                          \
  template <class T>                                                     \
  MSL_FUNC T __metal_##name(T value, T fill, ushort n, ushort) {         \
    return metal::name(value, fill, n);                                  \
  }
X(simd_shuffle_and_fill_down) X(simd_shuffle_and_fill_up)
#undef X
#define X(name)                       \
  template <class T>                  \
  MSL_FUNC T __metal_##name(T value) { \
    return metal::name(value);        \
  }
X(simd_max) X(simd_min) X(simd_sum) X(simd_product)
X(simd_prefix_inclusive_sum) X(simd_prefix_exclusive_sum)
X(simd_prefix_inclusive_product) X(simd_prefix_exclusive_product)
#undef X

// Named in a header, used by no kernel.
template <class T>
T __metal_simd_xor(T value);

// Stepping a pointer by an integral_constant: clang offers no built-in candidate for it here.
template <class P, class C, class V = typename C::value_type>
MSL_FUNC P*& operator+=(P*& pointer, C step) {
  pointer = pointer + (long)(V)step;
  return pointer;
}
