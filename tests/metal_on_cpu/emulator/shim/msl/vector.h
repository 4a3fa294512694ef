// Vectors of 2, 3 and 4 elements. A class, not clang's vector extension: only so do Metal's
// constructors, conversions and element references behave.
#pragma once

namespace metal {

template <class T, int N>
struct vec;

template <class T>
struct msl_is_vec : false_type {};
template <class T, int N>
struct msl_is_vec<vec<T, N>> : true_type {};
template <class T>
struct msl_length : integral_constant<int, 1> {};
template <class T, int N>
struct msl_length<vec<T, N>> : integral_constant<int, N> {};

// A scalar that Metal converts to a vector's element without being asked: no float to half.
template <class U, class T>
struct msl_widens
    : bool_constant<
          is_arithmetic<U>::value &&
          !(is_floating_point<U>::value && is_floating_point<T>::value && sizeof(U) > sizeof(T))> {
};

// Elements I... of a vector's storage of M.
template <class T, int M, int... I>
struct msl_swizzle {
  T s[M];
  operator vec<T, sizeof...(I)>() const {
    return vec<T, sizeof...(I)>(s[I]...);
  }
  void operator=(vec<T, sizeof...(I)> v) {
    int k = 0;
    ((s[I] = v.s[k++]), ...);
  }
};

template <class T, int N>
struct msl_storage;
template <class T>
struct alignas(2 * sizeof(T)) msl_storage<T, 2> {
  union {
    T s[2];
    struct { T x, y; };
    struct { T r, g; };
    msl_swizzle<T, 2, 0, 1> xy;
    msl_swizzle<T, 2, 1, 0> yx;
    msl_swizzle<T, 2, 0, 0> xx;
    msl_swizzle<T, 2, 1, 1> yy;
  };
};
template <class T>
struct alignas(4 * sizeof(T)) msl_storage<T, 3> {
  union {
    T s[4];
    struct { T x, y, z, msl_padding_; };
    struct { T r, g, b; };
    msl_swizzle<T, 4, 0, 1> xy, rg;
    msl_swizzle<T, 4, 1, 2> yz, gb;
    msl_swizzle<T, 4, 0, 2> xz;
    msl_swizzle<T, 4, 0, 1, 2> xyz, rgb;
    msl_swizzle<T, 4, 2, 1, 0> zyx;
  };
};
template <class T>
struct alignas(4 * sizeof(T)) msl_storage<T, 4> {
  union {
    T s[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    msl_swizzle<T, 4, 0, 1> xy, rg;
    msl_swizzle<T, 4, 1, 2> yz, gb;
    msl_swizzle<T, 4, 2, 3> zw, ba;
    msl_swizzle<T, 4, 0, 2> xz;
    msl_swizzle<T, 4, 1, 3> yw;
    msl_swizzle<T, 4, 0, 1, 2> xyz, rgb;
    msl_swizzle<T, 4, 1, 2, 3> yzw;
    msl_swizzle<T, 4, 0, 1, 2, 3> xyzw;
    msl_swizzle<T, 4, 3, 2, 1, 0> wzyx;
  };
};

template <class T, int N>
struct vec : msl_storage<T, N> {
  using msl_storage<T, N>::s;

  vec() = default;
  // By element: neither the sanitizer's check of alignment nor the trace of loads sees what is copied
  // as bytes.
  constexpr vec(const vec& other) : msl_storage<T, N>{} {
    *this = other;
  }
  constexpr vec& operator=(const vec& other) {
    for (int i = 0; i < N; i++) {
      s[i] = other.s[i];
    }
    return *this;
  }
  // The constant address space is no part of the generic one.
  template <class V, class = enable_if_t<is_same<V, vec>::value>>
  constexpr vec(const MSL_CONSTANT V& other) : msl_storage<T, N>{} {
    for (int i = 0; i < N; i++) {
      s[i] = other.s[i];
    }
  }
  template <class V, class = enable_if_t<is_same<V, vec>::value>>
  vec& operator=(const MSL_CONSTANT V& other) {
    return *this = vec(other);
  }
  template <class U, class = enable_if_t<is_arithmetic<U>::value>>
  constexpr vec(U value) : msl_storage<T, N>{} {
    for (int i = 0; i < N; i++) {
      s[i] = (T)value;
    }
  }
  template <class U, class = enable_if_t<!is_same<T, U>::value>>
  constexpr explicit vec(const vec<U, N>& other) : msl_storage<T, N>{} {
    for (int i = 0; i < N; i++) {
      s[i] = (T)other.s[i];
    }
  }
  template <class A, class B, class... C>
  constexpr vec(A a, B b, C... c) : msl_storage<T, N>{} {
    static_assert(
        msl_length<A>::value + msl_length<B>::value + (msl_length<C>::value + ... + 0) == N,
        "wrong number of elements");
    int k = 0;
    append(k, a);
    append(k, b);
    (append(k, c), ...);
  }

  // An element keeps its vector's address space.
  constexpr T& operator[](int i) {
    return s[i];
  }
  constexpr const T& operator[](int i) const {
    return s[i];
  }
#define X(SPACE)                                 \
  SPACE T& operator[](int i) SPACE {             \
    return s[i];                                 \
  }                                              \
  const SPACE T& operator[](int i) const SPACE { \
    return s[i];                                 \
  }
  X(MSL_THREAD) X(MSL_THREADGROUP) X(MSL_DEVICE)
#undef X
  const MSL_CONSTANT T& operator[](int i) const MSL_CONSTANT {
    return s[i];
  }

  constexpr vec operator-() const {
    vec r;
    for (int i = 0; i < N; i++) {
      r.s[i] = (T)-s[i];
    }
    return r;
  }
  constexpr vec operator~() const {
    vec r;
    for (int i = 0; i < N; i++) {
      r.s[i] = (T)~s[i];
    }
    return r;
  }
  constexpr vec<bool, N> operator!() const {
    vec<bool, N> r;
    for (int i = 0; i < N; i++) {
      r.s[i] = !s[i];
    }
    return r;
  }
#define X(op)                         \
  vec& operator op##=(vec other) {    \
    for (int i = 0; i < N; i++) {     \
      s[i] = (T)(s[i] op other.s[i]); \
    }                                 \
    return *this;                     \
  }
  X(+) X(-) X(*) X(/) X(%) X(&) X(|) X(^) X(<<) X(>>)
#undef X

 private:
  template <class A>
  constexpr void append(int& k, A a) {
    if constexpr (msl_is_vec<A>::value) {
      for (int i = 0; i < msl_length<A>::value; i++) {
        s[k++] = (T)a.s[i];
      }
    } else {
      s[k++] = (T)a;
    }
  }
};

#define MSL_BINARY(op, R)                                                            \
  template <class T, int N>                                                          \
  constexpr vec<R, N> operator op(vec<T, N> a, vec<T, N> b) {                        \
    vec<R, N> r{};                                                                   \
    for (int i = 0; i < N; i++) {                                                    \
      r.s[i] = (R)(a.s[i] op b.s[i]);                                                \
    }                                                                                \
    return r;                                                                        \
  }                                                                                  \
  template <class T, int N, class U, class = enable_if_t<msl_widens<U, T>::value>>   \
  constexpr vec<R, N> operator op(vec<T, N> a, U b) {                                \
    return a op vec<T, N>(b);                                                        \
  }                                                                                  \
  template <class T, int N, class U, class = enable_if_t<msl_widens<U, T>::value>>   \
  constexpr vec<R, N> operator op(U a, vec<T, N> b) {                                \
    return vec<T, N>(a) op b;                                                        \
  }

// Swizzles take part as the vectors that they convert to.
template <class T>
struct msl_is_swizzle : false_type {};
template <class T, int M, int... I>
struct msl_is_swizzle<msl_swizzle<T, M, I...>> : true_type {};
template <class T>
constexpr T msl_value(T v) {
  return v;
}
template <class T, int M, int... I>
constexpr vec<T, sizeof...(I)> msl_value(msl_swizzle<T, M, I...> v) {
  return v;
}
#define X(op)                                                                                  \
  template <                                                                                   \
      class A,                                                                                 \
      class B,                                                                                 \
      class = enable_if_t<msl_is_swizzle<A>::value || msl_is_swizzle<B>::value>>               \
  constexpr auto operator op(A a, B b) {                                                       \
    return msl_value(a) op msl_value(b);                                                       \
  }
X(+) X(-) X(*) X(/) X(<) X(>) X(<=) X(>=) X(==) X(!=)
#undef X
#define X(op) MSL_BINARY(op, T)
X(+) X(-) X(*) X(/) X(%) X(&) X(|) X(^) X(<<) X(>>)
#undef X
#define X(op) MSL_BINARY(op, bool)
X(<) X(>) X(<=) X(>=) X(==) X(!=) X(&&) X(||)
#undef X
#undef MSL_BINARY

template <int N>
bool all(vec<bool, N> v) {
  bool r = true;
  for (int i = 0; i < N; i++) {
    r = r && v.s[i];
  }
  return r;
}
template <int N>
bool any(vec<bool, N> v) {
  bool r = false;
  for (int i = 0; i < N; i++) {
    r = r || v.s[i];
  }
  return r;
}

// The same elements without a vector's alignment.
template <class T, int N>
struct packed_vec {
  T s[N];
  packed_vec() = default;
  packed_vec(vec<T, N> v) {
    for (int i = 0; i < N; i++) {
      s[i] = v.s[i];
    }
  }
  operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; i++) {
      r.s[i] = s[i];
    }
    return r;
  }
};

template <class T, int N>
T dot(vec<T, N> a, vec<T, N> b) {
  T r = a.s[0] * b.s[0];
  for (int i = 1; i < N; i++) {
    r += a.s[i] * b.s[i];
  }
  return r;
}
template <class T, int N>
T length_squared(vec<T, N> a) {
  return dot(a, a);
}
template <class T, int N>
T length(vec<T, N> a) {
  return (T)__builtin_sqrtf((float)dot(a, a));
}

} // namespace metal

#define X(T)                                                                            \
  typedef metal::vec<T, 2> T##2;                                                        \
  typedef metal::vec<T, 3> T##3;                                                        \
  typedef metal::vec<T, 4> T##4;                                                        \
  typedef metal::packed_vec<T, 2> packed_##T##2;                                        \
  typedef metal::packed_vec<T, 3> packed_##T##3;                                        \
  typedef metal::packed_vec<T, 4> packed_##T##4;
X(bool) X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong)
MSL_FLOATS(X)
#undef X

template <class To, class From>
constexpr MSL_FUNC To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type between types of different size");
  if constexpr (__is_trivially_copyable(To) && __is_trivially_copyable(From)) {
    return __builtin_bit_cast(To, from);
  } else {
    // Vectors have constructors of their own.
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
  }
}
