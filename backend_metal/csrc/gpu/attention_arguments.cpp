#include "gpu/attention_arguments.h"

#include <algorithm>

namespace pomona {

AttentionShape shape_of(const AttentionOptions& options, const AttentionArrays& a) {
  return {
      a.out.shape(1),
      a.k_cache.shape(2),
      a.k_cache.shape(3),
      a.v_cache.shape(3),
      options.window};
}

int max_context(const mx::array& block_tables, const mx::array& k_cache) {
  int64_t context = int64_t(block_tables.shape(1)) * k_cache.shape(1);
  return static_cast<int>(std::min<int64_t>(context, INT32_MAX));
}

GpuBatch batch_of(const AttentionOptions& options, const AttentionArrays& a) {
  return {
      a.out.shape(0),
      a.block_tables.shape(0),
      max_context(a.block_tables, a.k_cache),
      static_cast<int>(a.out.itemsize()),
      options.decodes,
      options.prefills};
}

bool are_aligned(const AttentionArrays& a) {
  return is_aligned(a.k_cache) && is_aligned(a.v_cache) &&
      (!a.new_tokens || (is_aligned(a.new_tokens->k) && is_aligned(a.new_tokens->v)));
}

bool are_aligned(const NewTokens& tokens) {
  return is_aligned(tokens.k) && is_aligned(tokens.v) && is_aligned(tokens.k_cache) &&
      is_aligned(tokens.v_cache);
}

bool values_are_in_keys(const AttentionArrays& a) {
  return a.v_cache.shape(3) <= a.k_cache.shape(3) && is_prefix(a.k_cache, a.v_cache) &&
      (!a.new_tokens || is_prefix(a.new_tokens->k, a.new_tokens->v));
}

AttentionParameters parameters_of(const AttentionOptions& options, const AttentionArrays& a) {
  AttentionParameters p{};
  p.q = a.q.strides;
  if (a.new_tokens) {
    p.k = a.new_tokens->k.strides;
    p.v = a.new_tokens->v.strides;
    p.slot_mapping_stride = a.new_tokens->slot_mapping.strides(0);
  }
  p.k_cache = cache_strides(a.k_cache);
  p.v_cache = cache_strides(a.v_cache);
  p.block_table_row = a.block_tables.strides(0);
  p.block_table_entry = a.block_tables.strides(1);
  p.seq_lens_stride = a.seq_lens.strides(0);
  p.cu_seqlens_stride = a.cu_seqlens_q.strides(0);
  p.sinks_stride = a.sinks ? a.sinks->strides(0) : 0;
  p.num_seqs = a.block_tables.shape(0);
  p.num_q_heads = a.out.shape(1);
  p.num_kv_heads = a.k_cache.shape(2);
  p.group = p.num_q_heads / p.num_kv_heads;
  p.window = options.window;
  p.scale = options.scale;
  p.softcap = options.softcap;
  return p;
}

ScatterParameters parameters_of(const NewTokens& tokens) {
  ScatterParameters p{};
  p.k = tokens.k.strides;
  p.v = tokens.v.strides;
  p.k_cache = cache_strides(tokens.k_cache);
  p.v_cache = cache_strides(tokens.v_cache);
  p.v_cache_offset = (tokens.v_cache.offset() - tokens.k_cache.offset()) /
      int64_t(tokens.v_cache.itemsize());
  p.slot_mapping_stride = tokens.slot_mapping.strides(0);
  p.num_tokens = tokens.slot_mapping.shape(0);
  p.num_kv_heads = tokens.k_cache.shape(2);
  p.head_dim = tokens.k_cache.shape(3);
  p.head_dim_v = tokens.v_cache.shape(3);
  return p;
}

} // namespace pomona
