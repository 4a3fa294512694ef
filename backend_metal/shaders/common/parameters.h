// What kernels are told besides their buffers. C++ and Metal read it: fields are 4 or 8 bytes wide,
// wide ones first, so that both lay them out alike. Strides are in elements and 64-bit: a cache is
// larger than 2^31 elements.
#pragma once

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace pomona {

// [tokens, heads, dim]; the last stride is 1.
struct RowStrides {
  int64_t token;
  int64_t head;
};

// [blocks, slots, heads, dim]; the last stride is 1.
struct CacheStrides {
  int64_t block;
  int64_t slot;
  int64_t head;
};

struct AttentionParameters {
  RowStrides q, k, v;
  CacheStrides k_cache, v_cache;
  int64_t block_table_row; // from one sequence's table to the next
  int64_t block_table_entry;
  int64_t slot_mapping_stride;
  int64_t seq_lens_stride;
  int64_t cu_seqlens_stride;
  int64_t sinks_stride;
  int num_seqs;
  int num_q_heads;
  int num_kv_heads;
  int group; // num_q_heads / num_kv_heads
  int window; // if has_window
  int keys_per_split; // see splits.h
  int max_splits;
  int num_splits; // that were launched, of a row
  int tile_rows; // of prefill
  int device_tiles; // of prefill; see splits.h
  float scale;
  float softcap; // if has_softcap
};

struct ScatterParameters {
  RowStrides k, v;
  CacheStrides k_cache, v_cache;
  int64_t v_cache_offset; // from k_cache's first element to v_cache's, unless two_caches
  int64_t slot_mapping_stride;
  int num_tokens;
  int num_kv_heads;
  int head_dim;
  int head_dim_v;
};

// [tokens, heads, dim] of any strides.
struct ElementStrides {
  int64_t token;
  int64_t head;
  int64_t dim;
};

struct ConvParameters {
  int64_t x_token; // strides
  int64_t x_channel;
  int num_tokens;
  int num_seqs;
  int channels;
  int taps; // of a channel
  int has_bias;
};

struct LinearAttentionParameters {
  ElementStrides q, k, v;
  ElementStrides gates; // dim: if channel_gates; token: unless gates_are_rates
  RowStrides betas;
  int num_seqs;
  int num_v_heads;
  int group; // num_v_heads / num_k_heads
  int head_dim_v;
  int delta_rule;
  int channel_gates;
  int gates_are_rates; // of each head's channels: a token's gates are exp(beta * rate)
};

struct RotateHeadsParameters {
  ElementStrides q, k;
  int64_t position; // strides
  int64_t q_weight; // if has_norm
  int64_t k_weight; // if has_norm
  int64_t frequency; // if has_frequencies
  int num_tokens;
  int num_q_heads;
  int num_heads; // of q and k
  int heads_per_run; // of one token, by one simdgroup
  int runs_per_token;
  int head_dim;
  int rotated_pairs; // of each head's head_dim / 2
  int traditional; // pairs are neighbours
  int has_norm;
  int has_frequencies;
  float scale; // of positions
  float log2_base; // unless has_frequencies
  float epsilon; // if has_norm
};

// How a row of logits is drawn from, as rows of 32-bit words have it.
struct DrawOptions {
  uint32_t key[2]; // of the row's noise
  float temperature; // 0: the token of the largest logit is taken
  float log_min_p; // minus infinity: off
  float top_p; // 1: off
  int32_t top_k; // the size of the vocabulary: off
  int32_t mask_row; // of the masks; -1: every token may come
  int32_t counts_row; // of the counts; -1: nothing is penalised
  float repetition;
  float presence;
  float frequency;
  int32_t first_bias, last_bias;
};

struct DrawParameters {
  int64_t row; // strides of logits
  int64_t token;
  int vocab_size;
  int words_per_mask;
  int num_chunks; // of the vocabulary, each scored by one threadgroup
  int num_slices; // likewise, where rows leave tokens out: each ranked by one
};

// [tokens, heads, dim] of any strides, to be packed.
struct PackParameters {
  int64_t strides[3];
  int num_heads;
  int dim;
};

} // namespace pomona
