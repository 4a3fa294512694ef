// metal_atomic. Real atomics: threadgroups run in parallel.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed = 0 };

template <class T>
struct atomic {
  T value;
};
// OpenCL has types of the usual names.
typedef atomic<int> msl_atomic_int;
typedef atomic<uint> msl_atomic_uint;
typedef atomic<float> msl_atomic_float;
typedef atomic<bool> msl_atomic_bool;

template <int bytes>
struct msl_bits;
template <>
struct msl_bits<1> {
  using type = uchar;
};
template <>
struct msl_bits<4> {
  using type = uint;
};
template <>
struct msl_bits<8> {
  using type = ulong;
};

// clang's atomic builtins take generic pointers to integers.
template <class T>
struct msl_atomic_place {
  using Bits = typename msl_bits<sizeof(T)>::type;
  volatile Bits* place;

  T load() const {
    return as_type<T>(__atomic_load_n(place, __ATOMIC_RELAXED));
  }
  void store(T x) const {
    __atomic_store_n(place, as_type<Bits>(x), __ATOMIC_RELAXED);
  }
  T exchange(T x) const {
    return as_type<T>(__atomic_exchange_n(place, as_type<Bits>(x), __ATOMIC_RELAXED));
  }
  bool replace(T& expected, T desired) const {
    Bits bits = as_type<Bits>(expected);
    bool replaced = __atomic_compare_exchange_n(
        place, &bits, as_type<Bits>(desired), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    expected = as_type<T>(bits);
    return replaced;
  }
};

#define MSL_FETCH(SPACE, NAME, EXPRESSION)                                    \
  template <class T>                                                          \
  MSL_FUNC T atomic_fetch_##NAME##_explicit(                                  \
      volatile SPACE atomic<T>* object, T x, memory_order) {                  \
    msl_atomic_place<T> place = {                                             \
        (volatile typename msl_atomic_place<T>::Bits*)&object->value};        \
    T a = place.load();                                                       \
    while (!place.replace(a, (T)(EXPRESSION))) {                              \
    }                                                                         \
    return a;                                                                 \
  }
#define X(SPACE)                                                              \
  template <class T>                                                          \
  MSL_FUNC T atomic_load_explicit(                                            \
      const volatile SPACE atomic<T>* object, memory_order) {                 \
    return msl_atomic_place<T>{                                               \
        (volatile typename msl_atomic_place<T>::Bits*)&object->value}         \
        .load();                                                              \
  }                                                                           \
  template <class T>                                                          \
  MSL_FUNC void atomic_store_explicit(                                        \
      volatile SPACE atomic<T>* object, T x, memory_order) {                  \
    msl_atomic_place<T>{                                                      \
        (volatile typename msl_atomic_place<T>::Bits*)&object->value}         \
        .store(x);                                                            \
  }                                                                           \
  template <class T>                                                          \
  MSL_FUNC T atomic_exchange_explicit(                                        \
      volatile SPACE atomic<T>* object, T x, memory_order) {                  \
    return msl_atomic_place<T>{                                               \
        (volatile typename msl_atomic_place<T>::Bits*)&object->value}         \
        .exchange(x);                                                         \
  }                                                                           \
  template <class T>                                                          \
  MSL_FUNC bool atomic_compare_exchange_weak_explicit(                        \
      volatile SPACE atomic<T>* object,                                       \
      MSL_THREAD T* expected,                                                 \
      T desired,                                                              \
      memory_order,                                                           \
      memory_order) {                                                         \
    T value = *expected;                                                      \
    bool replaced = msl_atomic_place<T>{                                      \
        (volatile typename msl_atomic_place<T>::Bits*)&object->value}         \
                        .replace(value, desired);                             \
    *expected = value;                                                        \
    return replaced;                                                          \
  }                                                                           \
  MSL_FETCH(SPACE, add, a + x)                                                \
  MSL_FETCH(SPACE, sub, a - x)                                                \
  MSL_FETCH(SPACE, max, a < x ? x : a)                                        \
  MSL_FETCH(SPACE, min, x < a ? x : a)                                        \
  MSL_FETCH(SPACE, and, a & x)                                                \
  MSL_FETCH(SPACE, or, a | x)                                                 \
  MSL_FETCH(SPACE, xor, a ^ x)
X(MSL_DEVICE) X(MSL_THREADGROUP)
#undef X
#undef MSL_FETCH

} // namespace metal
