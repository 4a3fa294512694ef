// Where kernels find their arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

// Threads of a block that only copies.
inline constexpr int kCopyThreads = 128;

// Tokens whose keys, or values, such a block copies to their slots.
inline constexpr int kScatterTokens = 4;

struct AttentionBuffers {
  const void* q;
  const void* k; // if has_new_tokens
  const void* v; // if has_new_tokens
  void* k_cache;
  void* v_cache;
  const int* slot_mapping; // if has_new_tokens
  const int* block_tables;
  const int* seq_lens;
  const int* cu_seqlens_q;
  const float* sinks; // if has_sinks
  void* out;
  float* partials; // if has_partials
  // Zeros: if folds_splits, one for each block of a decode; one of a prefill by warpgroups.
  unsigned* counters;
  int work_heads; // of a prefill by warpgroups: K/V heads that are at work beside each other
  int work_seqs; // likewise, sequences: one to 32
};

struct ScatterBuffers {
  const void* k;
  const void* v;
  void* k_cache;
  void* v_cache;
  const int* slot_mapping;
};

struct PackBuffers {
  const void* from;
  void* to;
};

} // namespace pomona
