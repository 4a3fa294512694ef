// Where the keys and values of a sequence lie: this step's own in k, v, older ones in the cache.
#pragma once

#include "common/constants.h"
#include "cpu/launch/arguments.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

template <typename T>
struct KeyRows {
  const T* keys[kKeyTile];
  const T* values[kKeyTile];
};

// Rows of one K/V head for positions [first, last), at most kKeyTile. A token of this step whose
// slot is negative was not written: it is in the cache already.
template <typename T>
inline void find_rows(
    const AttentionArguments& a, int seq, int kv_head, int first, int last, KeyRows<T>& rows) {
  const int32_t* table = a.block_tables + (int64_t)seq * a.max_blocks_per_seq;
  const T* keys = (const T*)a.k_cache.data + kv_head * a.k_cache.head_stride;
  const T* values = (const T*)a.v_cache.data + kv_head * a.v_cache.head_stride;
  for (int position = first, i = 0; position < last;) {
    int64_t block = table[position / a.block_size];
    int slot = position % a.block_size;
    const T* key = keys + block * a.k_cache.block_stride + slot * a.k_cache.slot_stride;
    const T* value = values + block * a.v_cache.block_stride + slot * a.v_cache.slot_stride;
    for (; slot < a.block_size && position < last; slot++, position++, i++) {
      rows.keys[i] = key;
      rows.values[i] = value;
      key += a.k_cache.slot_stride;
      value += a.v_cache.slot_stride;
    }
  }
  if (!a.slot_mapping) {
    return;
  }
  // Token of position p; positions before this step's are negative tokens.
  int64_t begin = a.cu_seqlens_q[seq], end = a.cu_seqlens_q[seq + 1];
  int64_t shift = end - a.seq_lens[seq];
  for (int64_t token = begin > first + shift ? begin : first + shift; token < last + shift;
       token++) {
    if (a.slot_mapping[token] >= 0) {
      int64_t i = token - shift - first;
      rows.keys[i] = (const T*)a.k.data + token * a.k.token_stride + kv_head * a.k.head_stride;
      rows.values[i] = (const T*)a.v.data + token * a.v.token_stride + kv_head * a.v.head_stride;
    }
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
