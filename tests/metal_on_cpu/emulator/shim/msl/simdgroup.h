// metal_simdgroup and metal_quadgroup: lanes exchange values through the runtime's slots. Every
// operation is a meeting of all lanes of the simdgroup, and none orders memory.
#pragma once

namespace metal {

constexpr MSL_CONSTANT int msl_simd_width = 32;
constexpr MSL_CONSTANT ulong msl_slot_bytes = 64;

// As bytes: constructors of T would be checked.
template <class T>
MSL_UNCHECKED void msl_put(ulong slots, uint lane, T value) {
  __builtin_memcpy((void*)(slots + lane * msl_slot_bytes), &value, sizeof(T));
}
template <class T>
MSL_UNCHECKED T msl_get(ulong slots, uint lane) {
  T value;
  __builtin_memcpy(&value, (const void*)(slots + lane * msl_slot_bytes), sizeof(T));
  return value;
}

template <class T>
MSL_FUNC T msl_exchange(T value, int from, ulong operation, uint line, ulong file) {
  if (from < 0 || from >= (int)msl_num_lanes()) {
    msl_bad_lane(from, line, file);
  }
  ulong slots = msl_lane_slots();
  msl_put<T>(slots, msl_lane(), value);
  msl_meet(operation, line, file);
  return msl_get<T>(slots, from);
}

#define MSL_SHUFFLE(NAME, FROM)                                                 \
  template <class T>                                                            \
  MSL_FUNC T NAME(T value, ushort n, MSL_SITE) {                                \
    int lane = (int)msl_lane();                                                 \
    return msl_exchange(value, FROM, MSL_OPERATION(#NAME), MSL_HERE);           \
  }
MSL_SHUFFLE(simd_shuffle, n)
MSL_SHUFFLE(simd_broadcast, n)
MSL_SHUFFLE(simd_shuffle_xor, lane ^ n)
// A lane without a source keeps its own value.
MSL_SHUFFLE(simd_shuffle_down, lane + n < msl_simd_width ? lane + n : lane)
MSL_SHUFFLE(simd_shuffle_up, lane >= n ? lane - n : lane)
MSL_SHUFFLE(simd_shuffle_rotate_down, (lane + n) % msl_simd_width)
MSL_SHUFFLE(simd_shuffle_rotate_up, (lane - n + msl_simd_width) % msl_simd_width)
MSL_SHUFFLE(quad_shuffle, (lane & ~3) + n)
MSL_SHUFFLE(quad_broadcast, (lane & ~3) + n)
MSL_SHUFFLE(quad_shuffle_xor, lane ^ (n & 3))
#undef MSL_SHUFFLE

template <class T>
MSL_FUNC T simd_broadcast_first(T value, MSL_SITE) {
  return msl_exchange(value, 0, MSL_OPERATION("simd_broadcast_first"), MSL_HERE);
}
template <class T>
MSL_FUNC T simd_shuffle_and_fill_down(T value, T fill, ushort n, MSL_SITE) {
  int from = (int)msl_lane() + n;
  T other = simd_shuffle_rotate_down(fill, n, line_, file_);
  T own = simd_shuffle_rotate_down(value, n, line_, file_);
  return from < msl_simd_width ? own : other;
}
template <class T>
MSL_FUNC T simd_shuffle_and_fill_up(T value, T fill, ushort n, MSL_SITE) {
  int from = (int)msl_lane() - n;
  T other = simd_shuffle_rotate_up(fill, n, line_, file_);
  T own = simd_shuffle_rotate_up(value, n, line_, file_);
  return from >= 0 ? own : other;
}

// Reductions: the last lane to arrive folds halves onto each other, as an exchange of lanes
// l and l ^ m would for m = 16, 8, ... 1, and leaves the result behind the first slot's value.
constexpr MSL_CONSTANT ulong msl_result_offset = 32;

#define MSL_REDUCTION(NAME, EXPRESSION)                                  \
  template <class T>                                                     \
  MSL_UNCHECKED void msl_fold_##NAME(ulong slots) {                      \
    T t[msl_simd_width];                                                 \
    int lanes = (int)msl_num_lanes();                                    \
    for (int i = 0; i < lanes; i++) {                                    \
      t[i] = msl_get<T>(slots, i);                                       \
    }                                                                    \
    for (int m = msl_simd_width / 2; m > 0; m /= 2) {                    \
      for (int i = 0; i < m && i + m < lanes; i++) {                     \
        T a = t[i], b = t[i + m];                                        \
        t[i] = (T)(EXPRESSION);                                          \
      }                                                                  \
    }                                                                    \
    msl_put<T>(slots + msl_result_offset, 0, t[0]);                      \
  }                                                                      \
  template <class T>                                                     \
  MSL_FUNC T NAME(T value, MSL_SITE) {                                   \
    static_assert(sizeof(T) <= msl_result_offset, "value of a lane");    \
    ulong slots = msl_lane_slots();                                      \
    msl_put<T>(slots, msl_lane(), value);                                \
    if (msl_meet(MSL_OPERATION(#NAME), MSL_HERE)) {                      \
      msl_fold_##NAME<T>(slots);                                         \
    }                                                                    \
    return msl_get<T>(slots + msl_result_offset, 0);                     \
  }
MSL_REDUCTION(simd_sum, a + b)
MSL_REDUCTION(simd_product, a * b)
MSL_REDUCTION(simd_max, max(a, b))
MSL_REDUCTION(simd_min, min(a, b))
MSL_REDUCTION(simd_and, a & b)
MSL_REDUCTION(simd_or, a | b)
MSL_REDUCTION(simd_xor, a ^ b)
#undef MSL_REDUCTION

#define MSL_SCAN(NAME, FIRST, EXPRESSION, INCLUSIVE)  \
  template <class T>                                  \
  MSL_FUNC T NAME(T value, MSL_SITE) {                \
    ulong slots = msl_lane_slots();                   \
    uint lane = msl_lane();                           \
    msl_put<T>(slots, lane, value);                   \
    msl_meet(MSL_OPERATION(#NAME), MSL_HERE);         \
    T a = (T)FIRST;                                   \
    for (uint i = 0; i < lane + INCLUSIVE; i++) {     \
      T b = msl_get<T>(slots, i);                     \
      a = (T)(EXPRESSION);                            \
    }                                                 \
    return a;                                         \
  }
MSL_SCAN(simd_prefix_inclusive_sum, 0, a + b, 1)
MSL_SCAN(simd_prefix_exclusive_sum, 0, a + b, 0)
MSL_SCAN(simd_prefix_inclusive_product, 1, a * b, 1)
MSL_SCAN(simd_prefix_exclusive_product, 1, a * b, 0)
#undef MSL_SCAN

struct simd_vote {
  ulong lanes;
  ulong everyone;
  explicit operator ulong() const {
    return lanes;
  }
  bool all() const {
    return lanes == everyone;
  }
  bool any() const {
    return lanes != 0;
  }
};
MSL_FUNC simd_vote simd_ballot(bool vote, MSL_SITE) {
  ulong slots = msl_lane_slots();
  msl_put<uint>(slots, msl_lane(), vote);
  msl_meet(MSL_OPERATION("simd_ballot"), MSL_HERE);
  ulong lanes = 0;
  for (uint i = 0; i < msl_num_lanes(); i++) {
    lanes |= (ulong)msl_get<uint>(slots, i) << i;
  }
  return {lanes, (1ul << msl_num_lanes()) - 1};
}
MSL_FUNC bool simd_any(bool vote, MSL_SITE) {
  return simd_ballot(vote, line_, file_).any();
}
MSL_FUNC bool simd_all(bool vote, MSL_SITE) {
  return simd_ballot(vote, line_, file_).all();
}
MSL_FUNC bool simd_is_first() {
  return msl_lane() == 0;
}

template <class T>
MSL_FUNC T quad_sum(T value, MSL_SITE) {
  T sum = (T)(value + quad_shuffle_xor(value, (ushort)1, line_, file_));
  return (T)(sum + quad_shuffle_xor(sum, (ushort)2, line_, file_));
}
template <class T>
MSL_FUNC T quad_max(T value, MSL_SITE) {
  T most = max(value, quad_shuffle_xor(value, (ushort)1, line_, file_));
  return max(most, quad_shuffle_xor(most, (ushort)2, line_, file_));
}

} // namespace metal
