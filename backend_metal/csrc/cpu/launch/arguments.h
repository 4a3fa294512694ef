// What the CPU kernels are given: raw pointers and 64-bit strides, in elements.
#pragma once

#include <cstdint>

namespace pomona::cpu {

enum class ElementType { float32, float16, bfloat16 };

inline int64_t size_of(ElementType type) {
  return type == ElementType::float32 ? 4 : 2;
}

// [tokens, heads, dim]; the last stride is 1.
struct Rows {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
};

// [blocks, slots, heads, dim]; the last stride is 1.
struct Cache {
  void* data;
  int64_t block_stride;
  int64_t slot_stride;
  int64_t head_stride;
};

struct ScatterArguments {
  ElementType type;
  int num_tokens;
  int num_kv_heads;
  int head_dim;
  int head_dim_v;
  int block_size;
  Rows k, v;
  Cache k_cache, v_cache;
  const int32_t* slot_mapping;
};

struct AttentionArguments {
  ElementType type;
  int num_seqs;
  int max_blocks_per_seq;
  int num_q_heads;
  int num_kv_heads;
  int head_dim;
  int head_dim_v;
  int block_size;
  float scale;
  int window; // 0: none
  float softcap; // 0: none
  bool one_kernel; // decode as prefill does
  Rows q;
  Rows k, v; // this step's own tokens, where slot_mapping is given
  Cache k_cache, v_cache;
  Rows out;
  const int32_t* slot_mapping; // null: every key is read from the cache
  const int32_t* block_tables;
  const int32_t* seq_lens;
  const int32_t* cu_seqlens_q;
  const float* sinks; // null: none
  float* partials; // see kernels/softmax_state.h
};

} // namespace pomona::cpu
