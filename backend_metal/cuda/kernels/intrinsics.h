// Everything that kernels ask of the hardware.
//
// Instructions by name: PTX ISA 9.0, sections 9.7.9 (cp.async, mapa), 9.7.13 (griddepcontrol,
// barrier.cluster), 9.7.15 (mma, ldmatrix).
#pragma once

#include "elements.h"

// Of a multiprocessor, for __launch_bounds__, by kernels that need to say so.
#define POMONA_LEAST_BLOCKS

// What a kernel begins with. One that does without has to call both parts of it itself.
#define POMONA_BEGIN pomona::begin_behind_others();

// The entry of a kernel, by the name that profilers tell: FUNCTION(const Parameters&, const Buffers&).
#define POMONA_KERNEL(NAME, THREADS, PARAMETERS, BUFFERS, ...)                       \
  extern "C" __global__ void __launch_bounds__(THREADS POMONA_LEAST_BLOCKS)          \
      NAME(const __grid_constant__ PARAMETERS p, const __grid_constant__ BUFFERS b) { \
    POMONA_BEGIN                                                                     \
    __VA_ARGS__(p, b);                                                               \
  }

namespace pomona {

// Lets the next kernel's blocks come where there is room. Of launches that may not overlap (csrc's
// overlap.cpp) this and the next do nothing.
inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Waits until all that kernels before this one wrote is in memory. Every thread has to.
inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

inline void begin_behind_others() {
  let_next_begin();
  wait_for_kernels_before();
}

struct Position {
  int x, y, z;
};

inline Position block_position() {
  return {int(blockIdx.x), int(blockIdx.y), int(blockIdx.z)};
}

inline int thread_index() {
  return threadIdx.x;
}

// Of the launch's size, aligned to 128 bytes: what is_last_block has lies before it, and copies should
// bring sectors of 32 bytes to sectors.
inline unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

inline void sync_block() {
  __syncthreads();
}

inline void sync_warp() {
  __syncwarp();
}

// Meets `threads` threads at a barrier by number, of which 0 is the block's.
inline void sync_some(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}


// `index` strides of elements behind a pointer, in one instruction: the compiler makes four or more of
// it. A stride is of less than 2^31 bytes, and the pointer is to global memory.
template <typename T>
inline T* strides_behind(T* from, int index, int stride) {
  long long bytes;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(bytes) : "r"(index), "r"(stride * int(sizeof(T))));
  return static_cast<T*>(__cvta_global_to_generic(__cvta_generic_to_global(from) + bytes));
}

// Adds to a word of shared or global memory, which others add to as well, and returns what was there.
inline unsigned add_shared(unsigned* to, unsigned value) {
  return atomicAdd(to, value);
}

inline float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}

inline float shuffle(float value, int lane) {
  return __shfl_sync(~0u, value, lane);
}
inline unsigned shuffle(unsigned value, int lane) {
  return __shfl_sync(~0u, value, lane);
}

// The lanes of the warp, a bit each, that say yes.
inline unsigned vote(bool yes) {
  return __ballot_sync(~0u, yes);
}

// Of a warp's words, for all of its lanes.
inline unsigned largest_of_warp(unsigned word) {
  return __reduce_max_sync(~0u, word);
}
inline unsigned sum_of_warp(unsigned word) {
  return __reduce_add_sync(~0u, word);
}
inline unsigned smallest_of_warp(unsigned word) {
  return __reduce_min_sync(~0u, word);
}

inline float to_float(float value) {
  return value;
}
inline float to_float(half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
inline float to_float(bfloat value) {
  return __uint_as_float(unsigned(value.bits) << 16);
}

// 2 to the power of x, within 2^-22 of itself; 0 below the smallest normal number.
inline float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Two elements as one word, `low` in its lower half; rounded to nearest, ties to even.
template <typename T>
inline unsigned pack(float low, float high);
template <>
inline unsigned pack<half>(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
inline unsigned pack<bfloat>(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

inline int count_bits(unsigned word) {
  return __popc(word);
}

// Four 8x8 matrices of 2-byte elements. Lane i names row i % 8 of matrix i / 8 (16 bytes, in shared
// memory) and receives elements 2 * (i % 4) and the next of row i / 4 of each of them.
inline void load_matrices(unsigned (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same of the transposed matrices.
inline void load_transposed(unsigned (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

// sum [16, 8] += left [16, 16] * right [16, 8], over a warp. With g = lane / 4 and t = lane % 4:
// sum: rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
// left, two columns a word: rows g, g + 8, g, g + 8; columns from 2t, 2t, 2t + 8, 2t + 8
// right, two rows a word: rows from 2t, 2t + 8; column g
template <typename T>
inline void multiply_accumulate(
    float (&sum)[4], const unsigned (&left)[4], unsigned right, unsigned next);

template <>
inline void multiply_accumulate<half>(
    float (&sum)[4], const unsigned (&left)[4], unsigned right, unsigned next) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "r"(next));
}
template <>
inline void multiply_accumulate<bfloat>(
    float (&sum)[4], const unsigned (&left)[4], unsigned right, unsigned next) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "r"(next));
}

// Between aligned places in global memory.
inline void copy_16_bytes(void* to, const void* from) {
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}

// Four floats at a multiple of 16 bytes in global memory, two at one of 8, or one.
inline void load_floats(float (&to)[4], const float* from) {
  float4 floats = *reinterpret_cast<const float4*>(from);
  to[0] = floats.x, to[1] = floats.y, to[2] = floats.z, to[3] = floats.w;
}

inline void load_floats(float (&to)[2], const float* from) {
  float2 floats = *reinterpret_cast<const float2*>(from);
  to[0] = floats.x, to[1] = floats.y;
}

inline void load_floats(float (&to)[1], const float* from) {
  to[0] = *from;
}

// Four elements at a multiple of their size.
inline void load_four(float (&to)[4], const float* from) {
  load_floats(to, from);
}
template <typename T>
inline void load_four(float (&to)[4], const T* from) {
  uint2 words = *reinterpret_cast<const uint2*>(from);
  const unsigned both[2] = {words.x, words.y};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    to[i] = to_float(T{static_cast<unsigned short>(both[i / 2] >> (i % 2 * 16))});
  }
}

// By name: of an assignment the compiler makes four stores, which write each line four times.
inline void store_floats(float* to, const float (&from)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3])
               : "memory");
}

inline void store_floats(float* to, const float (&from)[1]) {
  *to = from[0];
}

// 16 bytes of shared memory. By name: the compiler would load all that there is room for at once, and
// more.
inline void load_words(unsigned (&to)[4], const void* from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from))
               : "memory");
}

// The same the other way.
inline void store_words(void* to, const unsigned (&from)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(shared_address(to)), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

inline float float_of_bits(unsigned bits) {
  return __uint_as_float(bits);
}

// Of two words the upper halves or the lower ones; that of `low` is the lower one then.
inline unsigned join_halves(unsigned low, unsigned high, bool upper) {
  return __byte_perm(low, high, upper ? 0x7632 : 0x5410);
}

// `word` with a byte of `from`, by number, in place of its last one.
inline unsigned with_byte(unsigned word, unsigned from, int byte) {
  return __byte_perm(from, word, 0x7650 | byte);
}

// left * right + addend for each of a word's two elements, rounded once.
template <typename T>
inline unsigned fused_pairs(unsigned left, unsigned right, unsigned addend);
template <>
inline unsigned fused_pairs<half>(unsigned left, unsigned right, unsigned addend) {
  unsigned result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(left), "r"(right), "r"(addend));
  return result;
}
template <>
inline unsigned fused_pairs<bfloat>(unsigned left, unsigned right, unsigned addend) {
  unsigned result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(left), "r"(right), "r"(addend));
  return result;
}

// Whether this block is the last to come here of `blocks` that share the counter, which is zero before
// and afterwards. The last one finds by load_from_blocks what the others had written.
inline bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1u) == blocks - 1;
    if (is_last) {
      *counter = 0;
    }
  }
  __syncthreads();
  __threadfence();
  return is_last;
}

inline float load_from_blocks(const float* from) {
  return __ldcg(from);
}

inline void load_pair_from_blocks(float (&to)[2], const float* from) {
  float2 pair = __ldcg(reinterpret_cast<const float2*>(from));
  to[0] = pair.x, to[1] = pair.y;
}

// Waits for all threads of the blocks of a cluster, and for what they had written to each other. The
// first such meeting says that all of them are there.
inline void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
#endif
}

// Into the shared memory of a block of the cluster, by rank, at the place that `own` has in this one's.
inline void store_to_block(int rank, float* own, float value) {
#if __CUDA_ARCH__ >= 900
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(address), "f"(value) : "memory");
#endif
}

// Between registers and an aligned place in global memory.
inline void load_16_bytes(unsigned (&to)[4], const void* from) {
  uint4 words = *static_cast<const uint4*>(from);
  to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
}

inline void store_16_bytes(void* to, const unsigned (&from)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// Starts a copy of 16 bytes into shared memory, both sides aligned; zeros unless `present`, when
// `from` is not read.
inline void start_copy(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
               : "memory");
}

// Ends the thread's group of copies.
inline void end_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}

// Waits for all of the thread's groups but the latest N.
template <int N>
inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

} // namespace pomona
