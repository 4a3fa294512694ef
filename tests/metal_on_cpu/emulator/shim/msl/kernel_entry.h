// Calls a kernel with arguments that the runtime has bound for one thread.
#pragma once

struct msl_argument {
  ulong pointer;
  uint value[4];
};

template <class A>
struct msl_unpack {
  static A get(const msl_argument& argument) {
    if constexpr (metal::msl_is_vec<A>::value) {
      A v;
      for (int i = 0; i < metal::msl_length<A>::value; i++) {
        v.s[i] = argument.value[i];
      }
      return v;
    } else {
      return (A)argument.value[0];
    }
  }
};
template <class T>
struct msl_unpack<T*> {
  static T* get(const msl_argument& argument) {
    return (T*)argument.pointer;
  }
};
template <class T>
struct msl_unpack<T&> {
  static T& get(const msl_argument& argument) {
    return *(T*)argument.pointer;
  }
};

template <int... I>
struct msl_indices {};
template <int N, int... I>
struct msl_count : msl_count<N - 1, N - 1, I...> {};
template <int... I>
struct msl_count<0, I...> {
  using type = msl_indices<I...>;
};

template <class... A, int... I>
MSL_FUNC void msl_call(void (*function)(A...), const msl_argument* arguments, msl_indices<I...>) {
  function(msl_unpack<A>::get(arguments[I])...);
}
template <class... A>
MSL_FUNC void msl_enter(void (*function)(A...), ulong arguments) {
  msl_call(function, (const msl_argument*)arguments, typename msl_count<sizeof...(A)>::type());
}

// Variable K of the source's threadgroup variables.
template <class T, int K>
MSL_FUNC MSL_THREADGROUP T* msl_threadgroup_memory() {
  return (MSL_THREADGROUP T*)msl_threadgroup_variable(K, sizeof(T));
}
