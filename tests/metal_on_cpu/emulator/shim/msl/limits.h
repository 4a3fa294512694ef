// metal_numeric's numeric_limits.
#pragma once

namespace metal {

template <class T>
struct numeric_limits;

#define X(T)                                                               \
  template <>                                                              \
  struct numeric_limits<T> {                                               \
    static constexpr T max() {                                             \
      return T(-1) < T(0) ? T(~(1ul << (sizeof(T) * 8 - 1))) : T(~T(0));   \
    }                                                                      \
    static constexpr T min() {                                             \
      return T(-1) < T(0) ? T(1ul << (sizeof(T) * 8 - 1)) : T(0);          \
    }                                                                      \
    static constexpr T lowest() {                                          \
      return min();                                                        \
    }                                                                      \
    static constexpr T infinity() {                                        \
      return T(0);                                                         \
    }                                                                      \
  };
MSL_INTEGERS(X)
#undef X

#define X(T, MAX, MIN, EPSILON)            \
  template <>                              \
  struct numeric_limits<T> {               \
    static constexpr T max() {             \
      return (T)MAX;                       \
    }                                      \
    static constexpr T min() {             \
      return (T)MIN;                       \
    }                                      \
    static constexpr T lowest() {          \
      return (T)-MAX;                      \
    }                                      \
    static constexpr T infinity() {        \
      return (T)__builtin_inff();          \
    }                                      \
    static constexpr T quiet_NaN() {       \
      return (T)__builtin_nanf("");        \
    }                                      \
    static constexpr T epsilon() {         \
      return (T)EPSILON;                   \
    }                                      \
  };
X(float, 0x1.fffffep127f, 0x1p-126f, 0x1p-23f)
X(half, 65504.f, 0x1p-14f, 0x1p-10f)
X(bfloat, 0x1.fep127f, 0x1p-126f, 0x1p-7f)
#undef X

template <>
struct numeric_limits<bool> {
  static constexpr bool max() {
    return true;
  }
  static constexpr bool min() {
    return false;
  }
};

} // namespace metal
