// metal_math and the floating-point half of metal_common. Scalars are computed in float and
// rounded; vectors element by element.
#pragma once

namespace metal {

#define MSL_UNARY(X)                                                                      \
  X(fabs) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(ceil) X(cos) X(cosh)       \
  X(exp) X(exp2) X(floor) X(log) X(log2) X(log10) X(rint) X(round) X(sin) X(sinh) X(sqrt) \
  X(tan) X(tanh) X(trunc)
#define MSL_UNARY_FORMULAS(X)                             \
  X(rsqrt, 1.0f / __builtin_sqrtf(x))                     \
  X(exp10, __builtin_powf(10.f, x))                       \
  X(fract, x - __builtin_floorf(x))                       \
  X(sign, x > 0 ? 1.f : (x < 0 ? -1.f : 0.f))             \
  X(saturate, x < 0 ? 0.f : (x > 1 ? 1.f : x))            \
  X(cospi, __builtin_cosf(x * 3.14159265358979f))         \
  X(sinpi, __builtin_sinf(x * 3.14159265358979f))         \
  X(tanpi, __builtin_tanf(x * 3.14159265358979f))
#define MSL_BINARY_FORMULAS(X)                                                     \
  X(pow, __builtin_powf(x, y)) X(powr, __builtin_powf(x, y))                       \
  X(fmod, __builtin_fmodf(x, y)) X(atan2, __builtin_atan2f(x, y)) X(divide, x / y) \
  X(copysign, __builtin_copysignf(x, y)) X(fdim, __builtin_fdimf(x, y))            \
  X(nextafter, __builtin_nextafterf(x, y))

#define MSL_DEFINE_UNARY(F, EXPRESSION)        \
  MSL_FUNC float F(float x) {                  \
    return EXPRESSION;                         \
  }                                            \
  MSL_FUNC half F(half h) {                    \
    float x = (float)h;                        \
    return (half)(EXPRESSION);                 \
  }                                            \
  template <class T, int N>                    \
  MSL_FUNC vec<T, N> F(vec<T, N> v) {          \
    vec<T, N> r;                               \
    for (int i = 0; i < N; i++) {              \
      r.s[i] = F(v.s[i]);                      \
    }                                          \
    return r;                                  \
  }
#define MSL_DEFINE_BINARY(F, EXPRESSION)             \
  MSL_FUNC float F(float x, float y) {               \
    return EXPRESSION;                               \
  }                                                  \
  MSL_FUNC half F(half a, half b) {                  \
    float x = (float)a, y = (float)b;                \
    return (half)(EXPRESSION);                       \
  }                                                  \
  template <class T, int N>                          \
  MSL_FUNC vec<T, N> F(vec<T, N> a, vec<T, N> b) {   \
    vec<T, N> r;                                     \
    for (int i = 0; i < N; i++) {                    \
      r.s[i] = F(a.s[i], b.s[i]);                    \
    }                                                \
    return r;                                        \
  }

namespace precise {
#define X(F) MSL_DEFINE_UNARY(F, __builtin_##F##f(x))
MSL_UNARY(X)
#undef X
MSL_UNARY_FORMULAS(MSL_DEFINE_UNARY)
MSL_BINARY_FORMULAS(MSL_DEFINE_BINARY)
} // namespace precise

// Apple's fast versions may differ in the last places; here they are the precise ones.
namespace fast {
#define X(F, ...) using precise::F;
MSL_UNARY(X) MSL_UNARY_FORMULAS(X) MSL_BINARY_FORMULAS(X)
#undef X
} // namespace fast
#define X(F, ...) using precise::F;
MSL_UNARY(X) MSL_UNARY_FORMULAS(X) MSL_BINARY_FORMULAS(X)
#undef X

MSL_FUNC float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
MSL_FUNC half fma(half a, half b, half c) {
  return (half)__builtin_fmaf((float)a, (float)b, (float)c);
}
template <class T, int N>
MSL_FUNC vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) {
    r.s[i] = (T)__builtin_fmaf((float)a.s[i], (float)b.s[i], (float)c.s[i]);
  }
  return r;
}
MSL_FUNC float mad(float a, float b, float c) {
  return a * b + c;
}
MSL_FUNC float ldexp(float x, int e) {
  return __builtin_ldexpf(x, e);
}

// A NaN loses against a number.
#define X(T)                                   \
  MSL_FUNC constexpr T max(T a, T b) {         \
    return (a != a || a < b) ? b : a;          \
  }                                            \
  MSL_FUNC constexpr T min(T a, T b) {         \
    return (a != a || b < a) ? b : a;          \
  }                                            \
  MSL_FUNC constexpr T fmax(T a, T b) {        \
    return max(a, b);                          \
  }                                            \
  MSL_FUNC constexpr T fmin(T a, T b) {        \
    return min(a, b);                          \
  }                                            \
  MSL_FUNC T max3(T a, T b, T c) {             \
    return max(a, max(b, c));                  \
  }                                            \
  MSL_FUNC T min3(T a, T b, T c) {             \
    return min(a, min(b, c));                  \
  }                                            \
  MSL_FUNC T median3(T a, T b, T c) {          \
    return max(min(a, b), min(max(a, b), c));  \
  }                                            \
  MSL_FUNC T clamp(T x, T low, T high) {       \
    return min(max(x, low), high);             \
  }                                            \
  MSL_FUNC T abs(T x) {                        \
    return (T)__builtin_fabsf((float)x);       \
  }                                            \
  MSL_FUNC T mix(T a, T b, T t) {              \
    return a + (b - a) * t;                    \
  }                                            \
  MSL_FUNC bool isnan(T x) {                   \
    return x != x;                             \
  }                                            \
  MSL_FUNC bool isinf(T x) {                   \
    return __builtin_isinf((float)x);          \
  }                                            \
  MSL_FUNC bool isfinite(T x) {                \
    return __builtin_isfinite((float)x);       \
  }                                            \
  MSL_FUNC bool signbit(T x) {                 \
    return __builtin_signbit((float)x);        \
  }
X(float) X(half)
#undef X

template <class T>
MSL_FUNC T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T, int N>
MSL_FUNC vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) {
    r.s[i] = c.s[i] ? b.s[i] : a.s[i];
  }
  return r;
}

} // namespace metal
