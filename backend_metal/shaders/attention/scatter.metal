// Copies of rows: this step's keys and values to their slots, and rows of any strides to where the
// other kernels can read them. Elements are copied as bits, so kernels are instantiated for ushort
// and uint, not for every dtype.
#include <metal_stdlib>

#include "../common/bindings.h"
#include "../common/options.h"
#include "../common/parameters.h"

namespace pomona {

// Copies [heads, dim] elements; threads take 16 bytes at a time where both sides are aligned.
template <typename T>
inline void copy_heads(
    device T* to,
    int64_t to_stride,
    const device T* from,
    int64_t from_stride,
    int num_heads,
    int dim,
    uint thread_index,
    uint num_threads) {
  constexpr int width = 16 / sizeof(T);
  int step = aligned ? width : 1;
  int per_head = dim / step;
  for (int i = thread_index; i < num_heads * per_head; i += num_threads) {
    int head = i / per_head, element = i % per_head * step;
    device T* target = to + head * to_stride + element;
    const device T* source = from + head * from_stride + element;
    if (aligned) {
      *reinterpret_cast<device uint4*>(target) = *reinterpret_cast<const device uint4*>(source);
    } else {
      *target = *source;
    }
  }
}

// The slot's first element.
inline int64_t slot_offset(CacheStrides strides, int slot) {
  return slot / block_size * strides.block + slot % block_size * strides.slot;
}

} // namespace pomona

// Grid: (tokens, 2: keys and values, 1).
template <typename T>
[[kernel]] void scatter(
    constant pomona::ScatterParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* k [[buffer(POMONA_BUFFER_K)]],
    const device T* v [[buffer(POMONA_BUFFER_V)]],
    device T* k_cache [[buffer(POMONA_BUFFER_K_CACHE)]],
    device T* v_cache [[buffer(POMONA_BUFFER_V_CACHE), function_constant(two_caches)]],
    const device int* slot_mapping [[buffer(POMONA_BUFFER_SLOT_MAPPING)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint3 group_size [[threads_per_threadgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  using namespace pomona;
  int token = group_position.x;
  int slot = slot_mapping[token * p.slot_mapping_stride];
  if (slot < 0) {
    return;
  }
  if (group_position.y == 0) {
    copy_heads(
        k_cache + slot_offset(p.k_cache, slot),
        p.k_cache.head,
        k + token * p.k.token,
        p.k.head,
        p.num_kv_heads,
        p.head_dim,
        thread_index,
        group_size.x);
    return;
  }
  // One buffer is never bound twice: Metal takes two arguments for different memory.
  device T* values = k_cache + p.v_cache_offset;
  if (two_caches) {
    values = v_cache;
  }
  copy_heads(
      values + slot_offset(p.v_cache, slot),
      p.v_cache.head,
      v + token * p.v.token,
      p.v.head,
      p.num_kv_heads,
      p.head_dim_v,
      thread_index,
      group_size.x);
}

// Copies [tokens, heads, dim] of any strides to a packed array. Grid: (tokens, 1, 1).
template <typename T>
[[kernel]] void pack(
    constant pomona::PackParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* from [[buffer(POMONA_BUFFER_FROM)]],
    device T* to [[buffer(POMONA_BUFFER_TO)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint3 group_size [[threads_per_threadgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  int row_elements = p.num_heads * p.dim;
  for (int i = thread_index; i < row_elements; i += group_size.x) {
    to[int64_t(group_position.x) * row_elements + i] =
        from[group_position.x * p.strides[0] + i / p.dim * p.strides[1] +
             i % p.dim * p.strides[2]];
  }
}
