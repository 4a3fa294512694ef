// metal_integer, and what metal_common has for integers and vectors.
#pragma once

namespace metal {

#define X(T)                              \
  MSL_FUNC constexpr T max(T a, T b) {    \
    return a < b ? b : a;                 \
  }                                       \
  MSL_FUNC constexpr T min(T a, T b) {    \
    return b < a ? b : a;                 \
  }                                       \
  MSL_FUNC T clamp(T x, T low, T high) {  \
    return min(max(x, low), high);        \
  }                                       \
  MSL_FUNC T max3(T a, T b, T c) {        \
    return max(a, max(b, c));             \
  }                                       \
  MSL_FUNC T min3(T a, T b, T c) {        \
    return min(a, min(b, c));             \
  }
MSL_INTEGERS(X)
#undef X
#define X(T)               \
  MSL_FUNC T abs(T x) {    \
    return x < 0 ? -x : x; \
  }
X(char) X(schar) X(short) X(int) X(long)
#undef X

#define X(F)                                        \
  template <class T, int N>                         \
  MSL_FUNC vec<T, N> F(vec<T, N> a, vec<T, N> b) {  \
    vec<T, N> r;                                    \
    for (int i = 0; i < N; i++) {                   \
      r.s[i] = F(a.s[i], b.s[i]);                   \
    }                                               \
    return r;                                       \
  }
X(max) X(min)
#undef X
template <class T, int N>
MSL_FUNC vec<T, N> abs(vec<T, N> a) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) {
    r.s[i] = abs(a.s[i]);
  }
  return r;
}
template <class T, int N>
MSL_FUNC vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
  return min(max(x, low), high);
}

namespace precise {
using metal::abs;
using metal::clamp;
using metal::fma;
using metal::max;
using metal::min;
} // namespace precise
namespace fast {
using metal::abs;
using metal::clamp;
using metal::fma;
using metal::max;
using metal::min;
} // namespace fast

MSL_FUNC uint popcount(uint x) {
  return __builtin_popcount(x);
}
MSL_FUNC ulong popcount(ulong x) {
  return __builtin_popcountl(x);
}
MSL_FUNC uint clz(uint x) {
  return x ? __builtin_clz(x) : 32;
}
MSL_FUNC int clz(int x) {
  return (int)clz((uint)x);
}
MSL_FUNC uint ctz(uint x) {
  return x ? __builtin_ctz(x) : 32;
}
MSL_FUNC uint reverse_bits(uint x) {
  return __builtin_bitreverse32(x);
}
MSL_FUNC uint mulhi(uint a, uint b) {
  return (uint)(((ulong)a * b) >> 32);
}
template <class T>
MSL_FUNC T extract_bits(T x, uint offset, uint bits) {
  return bits == 0 ? T(0) : (T)((x << (sizeof(T) * 8 - offset - bits)) >> (sizeof(T) * 8 - bits));
}
template <class T>
MSL_FUNC T rotate(T x, T n) {
  return (T)((x << n) | (x >> (sizeof(T) * 8 - n)));
}

} // namespace metal
