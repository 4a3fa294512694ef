// metal_type_traits.
#pragma once

namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr MSL_CONSTANT T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const {
    return v;
  }
};
template <bool b>
using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};

template <bool c, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool c, class T = void>
using enable_if_t = typename enable_if<c, T>::type;

template <bool c, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool c, class A, class B>
using conditional_t = typename conditional<c, A, B>::type;

template <class T>
struct remove_reference {
  using type = T;
};
template <class T>
struct remove_reference<T&> {
  using type = T;
};
template <class T>
struct remove_reference<T&&> {
  using type = T;
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;

// In Metal an address space is no part of a type that a template deduces.
template <class T>
struct msl_unqualified {
  using type = T;
};
#define MSL_UNQUALIFIED(SPACE)                \
  template <class T>                          \
  struct msl_unqualified<SPACE T> {           \
    using type = T;                           \
  };                                          \
  template <class T>                          \
  struct msl_unqualified<const SPACE T> {     \
    using type = T;                           \
  };                                          \
  template <class T>                          \
  struct msl_unqualified<volatile SPACE T> {  \
    using type = T;                           \
  };
MSL_UNQUALIFIED(__global)
MSL_UNQUALIFIED(__constant)
MSL_UNQUALIFIED(__local)
MSL_UNQUALIFIED(__private)
MSL_UNQUALIFIED(__generic)
#undef MSL_UNQUALIFIED
template <class T>
struct msl_unqualified<const T> {
  using type = T;
};
template <class T>
struct msl_unqualified<volatile T> {
  using type = T;
};
template <class T>
using remove_addrspace_t = typename msl_unqualified<T>::type;
template <class T>
struct remove_cv {
  using type = typename msl_unqualified<T>::type;
};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
struct remove_const : remove_cv<T> {};
template <class T>
using remove_const_t = remove_cv_t<T>;
template <class T>
using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;
template <class T>
using decay_t = remove_cvref_t<T>;

template <class T>
struct is_pointer : false_type {};
template <class T>
struct is_pointer<T*> : true_type {};
template <class T>
struct is_reference : false_type {};
template <class T>
struct is_reference<T&> : true_type {};

template <class T>
struct msl_is_integer : false_type {};
template <class T>
struct msl_is_float : false_type {};
#define MSL_INTEGERS(X) X(char) X(schar) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong)
#define MSL_FLOATS(X) X(float) X(half) X(bfloat)
#define X(T)         \
  template <>        \
  struct msl_is_integer<T> : true_type {};
X(bool) MSL_INTEGERS(X)
#undef X
#define X(T)         \
  template <>        \
  struct msl_is_float<T> : true_type {};
MSL_FLOATS(X)
#undef X

template <class T>
struct is_integral : msl_is_integer<remove_cv_t<T>> {};
template <class T>
struct is_floating_point : msl_is_float<remove_cv_t<T>> {};
template <class T>
struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T>
struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T>
struct is_unsigned : bool_constant<!is_signed<T>::value> {};
template <class A, class B>
struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <class... B>
struct _disjunction : bool_constant<(B::value || ...)> {};
template <class... B>
struct _conjunction : bool_constant<(B::value && ...)> {};

template <class A, class B>
constexpr MSL_CONSTANT bool is_same_v = is_same<A, B>::value;
template <class A, class B>
constexpr MSL_CONSTANT bool is_convertible_v = is_convertible<A, B>::value;
#define X(trait)     \
  template <class T> \
  constexpr MSL_CONSTANT bool trait##_v = trait<T>::value;
X(is_pointer) X(is_reference) X(is_integral) X(is_floating_point) X(is_arithmetic)
X(is_signed) X(is_unsigned)
#undef X

template <class T>
T declval();
template <class T>
using uniform = T;
template <class T>
MSL_FUNC constexpr T make_uniform(T value) {
  return value;
}

} // namespace metal
