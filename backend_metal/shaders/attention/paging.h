// Where the queries, keys and values of a sequence lie.
#pragma once

#include <metal_stdlib>

#include "../common/options.h"
#include "../common/parameters.h"

namespace pomona {

// The queries of one sequence: tokens [first_token, first_token + q_len) at positions from
// seq_len - q_len. Those before position 0 see nothing.
struct Sequence {
  int index;
  int first_token;
  int q_len;
  int seq_len;

  // The token of this step at `position`, counted over the batch.
  int token_at(int position) const {
    return position - (seq_len - q_len) + first_token;
  }

  // Keys [first_key, last_key) are seen by queries [first_query, last_query].
  int last_key(int last_query) const {
    return metal::max(seq_len - q_len + last_query + 1, 0);
  }
  int first_key(int first_query, int window) const {
    int first = has_window ? metal::max(seq_len - q_len + first_query - (window - 1), 0) : 0;
    return first;
  }
};

inline Sequence load_sequence(
    constant AttentionParameters& p,
    const device int* seq_lens,
    const device int* cu_seqlens_q,
    int index) {
  int first = cu_seqlens_q[index * p.cu_seqlens_stride];
  int last = cu_seqlens_q[(index + 1) * p.cu_seqlens_stride];
  return Sequence{index, first, last - first, seq_lens[index * p.seq_lens_stride]};
}

// First tile that belongs to sequence `seq`, where each has up to one tile more than its rows fill:
// an upper bound that needs no prefix sum over tiles.
inline int first_tile(
    constant AttentionParameters& p, const device int* cu_seqlens_q, int seq, int tile_rows) {
  return cu_seqlens_q[seq * p.cu_seqlens_stride] * p.group / tile_rows + seq;
}

// The sequence of tile `tile`, by binary search: the last one whose first tile is not after it.
inline int find_sequence(
    constant AttentionParameters& p, const device int* cu_seqlens_q, int tile, int tile_rows) {
  int low = 0, high = p.num_seqs - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (first_tile(p, cu_seqlens_q, middle, tile_rows) <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Rows of the keys and values of one sequence and K/V head.
template <typename T>
struct KeyRows {
  const device T* keys; // of this step, [tokens, dim]
  const device T* values;
  const device T* cached_keys; // [blocks, slots, dim]
  const device T* cached_values;
  const device int* slot_mapping;
  const device int* block_table;

  // This step wrote the key at `position`, and it is read from there: what is in the cache may be
  // written while this kernel runs. A token of this step without a slot is in the cache already.
  bool is_new(constant AttentionParameters& p, Sequence seq, int position) const {
    if (!has_new_tokens || position < seq.seq_len - seq.q_len) {
      return false;
    }
    return slot_mapping[seq.token_at(position) * p.slot_mapping_stride] >= 0;
  }

  int64_t block_at(constant AttentionParameters& p, int position) const {
    return block_table[position / block_size * p.block_table_entry];
  }

  // `block` is block_at(position).
  const device T* key(
      constant AttentionParameters& p, Sequence seq, int position, int64_t block) const {
    if (is_new(p, seq, position)) {
      return keys + seq.token_at(position) * p.k.token;
    }
    return cached_keys + block * p.k_cache.block + position % block_size * p.k_cache.slot;
  }

  const device T* value(
      constant AttentionParameters& p, Sequence seq, int position, int64_t block) const {
    if (is_new(p, seq, position)) {
      return values + seq.token_at(position) * p.v.token;
    }
    return cached_values + block * p.v_cache.block + position % block_size * p.v_cache.slot;
  }
};

template <typename T>
inline KeyRows<T> key_rows(
    constant AttentionParameters& p,
    const device T* k,
    const device T* v,
    const device T* k_cache,
    const device T* v_cache,
    const device int* slot_mapping,
    const device int* block_tables,
    int seq,
    int kv_head) {
  KeyRows<T> rows{};
  if (has_new_tokens) {
    rows.keys = k + kv_head * p.k.head;
    rows.values = v + kv_head * p.v.head;
    rows.slot_mapping = slot_mapping;
  }
  rows.cached_keys = k_cache + kv_head * p.k_cache.head;
  rows.cached_values = v_cache + kv_head * p.v_cache.head;
  rows.block_table = block_tables + seq * p.block_table_row;
  return rows;
}

} // namespace pomona
