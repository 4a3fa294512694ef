// What AIR leaves to the GPU, on the emulator's threadgroup runtime (runtime/kernel_calls.cpp).
// Rounding and the order of additions are the emulator's standard library's: neither is in AIR.
#include <cmath>
#include <cstdint>

extern "C" {
unsigned msl_lane();
unsigned long msl_lane_slots();
int msl_meet(unsigned long operation, unsigned line, unsigned long file);
void msl_simdgroup_barrier(unsigned memory, unsigned line, unsigned long file);
void msl_threadgroup_barrier(unsigned memory, unsigned line, unsigned long file);
}

namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned long kSlotBytes = 64;
constexpr unsigned long kResultAt = 32;

// AIR has no lines: the address of the call tells meetings apart.
#define HERE static_cast<unsigned>(reinterpret_cast<uintptr_t>(__builtin_return_address(0)))
#define FILE_NAME reinterpret_cast<unsigned long>("AIR")

template <typename T>
T& slot(unsigned long slots, unsigned lane, unsigned long at = 0) {
  return *reinterpret_cast<T*>(slots + lane * kSlotBytes + at);
}

bool meet(const char* operation, unsigned here) {
  return msl_meet(reinterpret_cast<unsigned long>(operation), here, FILE_NAME);
}

// The last lane to arrive folds for all: halves of the simdgroup, then quarters, ...
template <typename T, typename Fold>
T reduce(T value, const char* operation, unsigned here, Fold fold) {
  unsigned long slots = msl_lane_slots();
  slot<T>(slots, msl_lane()) = value;
  if (meet(operation, here)) {
    T folded[kLanes];
    for (unsigned i = 0; i < kLanes; i++) {
      folded[i] = slot<T>(slots, i);
    }
    for (unsigned half = kLanes / 2; half; half /= 2) {
      for (unsigned i = 0; i < half; i++) {
        folded[i] = fold(folded[i], folded[i + half]);
      }
    }
    slot<T>(slots, 0, kResultAt) = folded[0];
  }
  return slot<T>(slots, 0, kResultAt);
}

template <typename T>
T exchange(T value, unsigned from, const char* operation, unsigned here) {
  unsigned long slots = msl_lane_slots();
  slot<T>(slots, msl_lane()) = value;
  meet(operation, here);
  return slot<T>(slots, from);
}

template <typename T>
T add(T a, T b) {
  return a + b;
}

// As Metal's: a NaN loses to a number.
template <typename T>
T most(T a, T b) {
  return a != a || a < b ? b : a;
}

// Where a lane's first element is; the second is to its right. A test tries other maps.
struct Place {
  unsigned row, column;
};
#ifndef AIR_LANE_MAP
#define AIR_LANE_MAP {lane / 4 / 4 * 4 + lane / 2 % 4, lane / 8 % 2 * 4 + lane % 2 * 2}
#endif

Place place_of(unsigned lane) {
  return AIR_LANE_MAP;
}

// The lane that holds (row, column) as its element column % 2.
unsigned lane_of(unsigned row, unsigned column) {
  for (unsigned lane = 0; lane < kLanes; lane++) {
    Place place = place_of(lane);
    if (place.row == row && place.column == column / 2 * 2) {
      return lane;
    }
  }
  __builtin_trap();
}

template <typename A, typename B>
struct Operands {
  A a[2];
  B b[2];
};

template <typename A, typename B>
void multiply_accumulate(float* d, const A* a, const B* b, const float* c, unsigned here) {
  unsigned long slots = msl_lane_slots();
  auto [row, column] = place_of(msl_lane());
  slot<Operands<A, B>>(slots, msl_lane()) = {{a[0], a[1]}, {b[0], b[1]}};
  meet("simdgroup_multiply_accumulate", here);
  for (unsigned j = 0; j < 2; j++) {
    float sum = c[j];
    for (unsigned k = 0; k < 8; k++) {
      auto& left = slot<Operands<A, B>>(slots, lane_of(row, k));
      auto& right = slot<Operands<A, B>>(slots, lane_of(k, column));
      sum = std::fma(static_cast<float>(left.a[k % 2]), static_cast<float>(right.b[j]), sum);
    }
    d[j] = sum;
  }
}

template <typename T>
T* element(T* matrix, long stride, long x, long y, bool transpose, unsigned j) {
  auto [row, first_column] = place_of(msl_lane());
  unsigned column = first_column + j;
  return matrix + y * stride + x + (transpose ? column * stride + row : row * stride + column);
}

} // namespace

#define REDUCTION(name, type, suffix, fold)                          \
  type air_##name##_##suffix(type value) asm("air." #name "." #suffix); \
  type air_##name##_##suffix(type value) {                           \
    return reduce(value, #name, HERE, fold<type>);                   \
  }
REDUCTION(simd_sum, float, f32, add)
REDUCTION(simd_sum, _Float16, f16, add)
REDUCTION(simd_max, float, f32, most)
REDUCTION(simd_max, _Float16, f16, most)
#undef REDUCTION

#define FUNCTION(name, air, expression)  \
  float air_##name(float x) asm(air);    \
  float air_##name(float x) {            \
    return expression;                   \
  }
FUNCTION(fast_exp, "air.fast_exp.f32", expf(x))
FUNCTION(fast_exp2, "air.fast_exp2.f32", exp2f(x))
FUNCTION(fast_log, "air.fast_log.f32", logf(x))
FUNCTION(log2, "air.log2.f32", log2f(x))
#undef FUNCTION

float air_shuffle_xor(float value, short mask) asm("air.simd_shuffle_xor.f32");
float air_shuffle_xor(float value, short mask) {
  return exchange(value, msl_lane() ^ mask, "simd_shuffle_xor", HERE);
}

float air_prefix_sum(float value) asm("air.simd_prefix_inclusive_sum.f32");
float air_prefix_sum(float value) {
  unsigned long slots = msl_lane_slots();
  slot<float>(slots, msl_lane()) = value;
  meet("simd_prefix_inclusive_sum", HERE);
  float sum = 0;
  for (unsigned i = 0; i <= msl_lane(); i++) {
    sum += slot<float>(slots, i);
  }
  return sum;
}

float air_fmax(float a, float b) asm("air.fmax.f32");
float air_fmax(float a, float b) {
  return most(a, b);
}

int air_min(int a, int b) asm("air.min.s.i32");
int air_min(int a, int b) {
  return a < b ? a : b;
}

int air_max(int a, int b) asm("air.max.s.i32");
int air_max(int a, int b) {
  return a < b ? b : a;
}

float air_to_float(unsigned x) asm("air.convert.f.f32.u.i32");
float air_to_float(unsigned x) {
  return static_cast<float>(x);
}

char air_predicate(char x) asm("air.normalize_function_constant_predicate.i8");
char air_predicate(char x) {
  return x != 0;
}

// Flags as in mem_flags; the second number is the scope of the fence.
void air_threadgroup_barrier(int flags, int) asm("air.wg.barrier");
void air_threadgroup_barrier(int flags, int) {
  msl_threadgroup_barrier(flags, HERE, FILE_NAME);
}

void air_simdgroup_barrier(int flags, int) asm("air.simdgroup.barrier");
void air_simdgroup_barrier(int flags, int) {
  msl_simdgroup_barrier(flags, HERE, FILE_NAME);
}

extern "C" {

#define PRODUCT(suffix, type)                                     \
  void air_multiply_accumulate_f32_f32_##suffix##_f32(            \
      float* d, const float* a, const type* b, const float* c) {  \
    multiply_accumulate(d, a, b, c, HERE);                        \
  }
PRODUCT(f32, float)
PRODUCT(f16, _Float16)
PRODUCT(bf16, __bf16)
#undef PRODUCT

void air_matrix_load_f32(float* lane, float* matrix, long stride, long x, long y, bool transpose) {
  meet("simdgroup_load", HERE);
  for (unsigned j = 0; j < 2; j++) {
    lane[j] = *element(matrix, stride, x, y, transpose, j);
  }
}

void air_matrix_store_f32(float* lane, float* matrix, long stride, long x, long y, bool transpose) {
  meet("simdgroup_store", HERE);
  for (unsigned j = 0; j < 2; j++) {
    *element(matrix, stride, x, y, transpose, j) = lane[j];
  }
}

} // extern "C"
