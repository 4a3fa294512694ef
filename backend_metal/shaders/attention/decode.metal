// Attention of sequences with one query token: flash-decoding.
//
// T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for long-context inference" (2023).
//
// A threadgroup owns one split of the keys of one sequence and K/V head, for up to ROW_TILES x 8
// query heads of that head's group: K and V are read from memory once for all of them. The queries
// of 8 heads are the rows of an 8x8 matrix, so scores and outputs are products of matrices, whose
// cost does not depend on the group; there is no reduction across lanes but the row's maximum.
// At four bytes of K and V a multiplication of 8 rows, that stays below a third of what every Apple
// GPU multiplies while it reads.
//
// A simdgroup owns one tile of 8 heads, one part of the output's dimensions, and every key_parts-th
// run of 32 keys of the split. Lanes read K and V straight from memory into the matrices' lanes, 16
// bytes at once where the head dim allows: which 8 dimensions make a matrix is free as long as both
// operands agree, so a matrix takes each W-th dimension, and a lane's W neighbours are in W
// matrices:
//
//   K: lane (row, column): keys column and column + 1, W dimensions from row * W
//   V: lane (row, column): key row, W dimensions from column / 2 * W
//
// Threadgroup memory: the queries, as tiles in the order of the matrices; then what key parts hand
// to each other, half of them at a time. Keys outside the split are not read: their lanes read one
// of the split's own again, and give it the weight 0.
//
// A row with one split is finished here, the others' states go to `reduce`.
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "../common/chunks.h"
#include "../common/constants.h"
#include "decode_tile.h"
#include "../common/lane_map.h"
#include "../common/matrix_products.h"
#include "../common/options.h"
#include "paging.h"
#include "../common/parameters.h"
#include "softmax.h"
#include "splits.h"

namespace pomona {

constant constexpr int kOctets = kDecodeKeys / kMatrixDim;

// Where the lane reads: of each run of 8 keys, two keys and one value.
template <typename T>
struct LaneRows {
  const device T* keys[kOctets][2];
  const device T* values[kOctets];
};

// Keys [step, step + 32), those outside [begin, end) replaced.
template <typename T>
inline LaneRows<T> lane_rows(
    constant AttentionParameters& p,
    thread const KeyRows<T>& rows,
    Sequence seq,
    int step,
    int begin,
    int end,
    LaneMap at) {
  LaneRows<T> found;
  // The last key is this step's own; of those before it, 8 at a time lie in one block.
  bool all_cached = step >= begin && step + kDecodeKeys < end;
#pragma clang loop unroll(full)
  for (int octet = 0; octet < kOctets; octet++) {
    int first = step + octet * kMatrixDim;
    if (all_cached) {
      int64_t block = rows.block_at(p, first);
      int slot = first % block_size;
      found.keys[octet][0] =
          rows.cached_keys + block * p.k_cache.block + (slot + at.column) * p.k_cache.slot;
      found.keys[octet][1] = found.keys[octet][0] + p.k_cache.slot;
      found.values[octet] =
          rows.cached_values + block * p.v_cache.block + (slot + at.row) * p.v_cache.slot;
      continue;
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
      int position = metal::clamp(first + at.column + i, begin, end - 1);
      found.keys[octet][i] = rows.key(p, seq, position, rows.block_at(p, position));
    }
    int position = metal::clamp(first + at.row, begin, end - 1);
    found.values[octet] = rows.value(p, seq, position, rows.block_at(p, position));
  }
  return found;
}

// scores = queries * transpose(keys). `queries` is the lane's place in the tile's first matrix.
template <typename T, int D>
inline void score(
    thread Matrix (&scores)[kOctets],
    const threadgroup T* queries,
    thread const LaneRows<T>& rows,
    LaneMap at) {
  constexpr int width = chunk_width<T>(D, kMatrixDim);
  clear(scores);
  for (int first = 0; first < D; first += width * kMatrixDim) {
    Chunk<T, width> keys[kOctets][2];
#pragma clang loop unroll(full)
    for (int octet = 0; octet < kOctets; octet++) {
      keys[octet][0] = load_chunk<T, width>(rows.keys[octet][0] + first + at.row * width);
      keys[octet][1] = load_chunk<T, width>(rows.keys[octet][1] + first + at.row * width);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < width; i++) {
      metal::vec<T, 2> query = *reinterpret_cast<const threadgroup metal::vec<T, 2>*>(
          queries + (first + i * kMatrixDim) * kMatrixDim);
      Matrix left;
      left.thread_elements()[0] = float(query[0]);
      left.thread_elements()[1] = float(query[1]);
#pragma clang loop unroll(full)
      for (int octet = 0; octet < kOctets; octet++) {
        multiply_accumulate(scores[octet], left, keys[octet][0].get(i), keys[octet][1].get(i));
      }
    }
  }
}

// sums += weights * values, of DIMS dimensions from `first_dim`.
template <typename T, int DIMS>
inline void add_values(
    thread Matrix (&sums)[DIMS / kMatrixDim],
    thread const Matrix (&weights)[kOctets],
    thread const LaneRows<T>& rows,
    int first_dim,
    LaneMap at) {
  constexpr int width = chunk_width<T>(DIMS, 4);
#pragma clang loop unroll(full)
  for (int part = 0; part < DIMS / (4 * width); part++) {
    Chunk<T, width> values[kOctets];
#pragma clang loop unroll(full)
    for (int octet = 0; octet < kOctets; octet++) {
      values[octet] = load_chunk<T, width>(
          rows.values[octet] + first_dim + part * 4 * width + at.column / 2 * width);
    }
#pragma clang loop unroll(full)
    for (int octet = 0; octet < kOctets; octet++) {
#pragma clang loop unroll(full)
      for (int i = 0; i < width / 2; i++) {
        multiply_accumulate(
            sums[part * (width / 2) + i],
            weights[octet],
            values[octet].get(2 * i),
            values[octet].get(2 * i + 1));
      }
    }
  }
}

// One row's softmax and output over the keys so far. The row's four lanes agree on `largest`; each
// has its own share of `sum` and of the output.
template <int DIMS>
struct RowState {
  Matrix sums[DIMS / kMatrixDim];
  float largest;
  float sum;
};

template <int DIMS>
inline void scale(thread RowState<DIMS>& state, float factor) {
  state.sum *= factor;
#pragma clang loop unroll(full)
  for (int i = 0; i < DIMS / kMatrixDim; i++) {
    state.sums[i].thread_elements()[0] *= factor;
    state.sums[i].thread_elements()[1] *= factor;
  }
}

// Turns the scores of keys [step, step + 32) into weights, and rescales the state to them.
template <int DIMS>
inline void weigh(
    constant AttentionParameters& p,
    thread Matrix (&scores)[kOctets],
    thread RowState<DIMS>& state,
    int step,
    int begin,
    int end,
    LaneMap at) {
  float largest = -INFINITY;
#pragma clang loop unroll(full)
  for (int octet = 0; octet < kOctets; octet++) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
      int key = step + octet * kMatrixDim + at.column + i;
      float scaled = scaled_score(scores[octet].thread_elements()[i], p.scale, p.softcap);
      scaled = key >= begin && key < end ? scaled : -INFINITY;
      scores[octet].thread_elements()[i] = scaled;
      largest = metal::max(largest, scaled);
    }
  }
  largest = metal::max(state.largest, row_max(largest));
  float base = exponent_base(largest);
  scale(state, rescale(state.largest, base));
  state.largest = largest;
#pragma clang loop unroll(full)
  for (int octet = 0; octet < kOctets; octet++) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
      float weight = rescale(scores[octet].thread_elements()[i], base);
      scores[octet].thread_elements()[i] = weight;
      state.sum += weight;
    }
  }
}

// A state in threadgroup memory, lane by lane.
template <int DIMS>
inline void store_state(thread RowState<DIMS>& state, threadgroup float* to, uint lane) {
#pragma clang loop unroll(full)
  for (int i = 0; i < DIMS / kMatrixDim; i++) {
    to[2 * i * kSimdWidth + lane] = state.sums[i].thread_elements()[0];
    to[(2 * i + 1) * kSimdWidth + lane] = state.sums[i].thread_elements()[1];
  }
  to[DIMS / 4 * kSimdWidth + lane] = state.largest;
  to[(DIMS / 4 + 1) * kSimdWidth + lane] = state.sum;
}

template <int DIMS>
inline void fold_state(thread RowState<DIMS>& state, const threadgroup float* from, uint lane) {
  float largest = from[DIMS / 4 * kSimdWidth + lane];
  float base = exponent_base(metal::max(state.largest, largest));
  float factor = rescale(largest, base);
  scale(state, rescale(state.largest, base));
  state.largest = metal::max(state.largest, largest);
  state.sum += from[(DIMS / 4 + 1) * kSimdWidth + lane] * factor;
#pragma clang loop unroll(full)
  for (int i = 0; i < DIMS / kMatrixDim; i++) {
    state.sums[i].thread_elements()[0] += from[2 * i * kSimdWidth + lane] * factor;
    state.sums[i].thread_elements()[1] += from[(2 * i + 1) * kSimdWidth + lane] * factor;
  }
}

// The lane's dimensions of its row, `factor` times: as add_values laid them out.
template <typename T, typename OUT, int DIMS>
inline void write_row(thread RowState<DIMS>& state, device OUT* row, float factor, LaneMap at) {
  constexpr int width = chunk_width<T>(DIMS, 4);
#pragma clang loop unroll(full)
  for (int i = 0; i < DIMS / kMatrixDim; i++) {
    int dim = i / (width / 2) * (4 * width) + at.column / 2 * width + i % (width / 2) * 2;
    metal::vec<OUT, 2> pair(
        OUT(state.sums[i].thread_elements()[0] * factor),
        OUT(state.sums[i].thread_elements()[1] * factor));
    *reinterpret_cast<device metal::vec<OUT, 2>*>(row + dim) = pair;
  }
}

// The queries of the tiles from head `first_head` of the group on, in the order of the matrices;
// zeros for heads that the group does not have.
template <typename T, int D>
inline void stage_queries(
    threadgroup T* to,
    const device T* from,
    int64_t head_stride,
    int num_rows,
    int num_heads,
    uint thread_index,
    uint num_threads) {
  constexpr int width = chunk_width<T>(D, kMatrixDim);
  for (int i = thread_index; i < num_rows * D; i += num_threads) {
    int row = i / D, dim = i % D;
    int matrix = dim / (width * kMatrixDim) * width + dim % width;
    int column = dim / width % kMatrixDim;
    int tile = row / kMatrixDim;
    to[tile * kMatrixDim * D + (matrix * kMatrixDim + row % kMatrixDim) * kMatrixDim + column] =
        row < num_heads ? from[row * head_stride + dim] : T(0);
  }
}

} // namespace pomona

// Grid: (K/V heads * passes, splits, sequences). Threads: decode_threads.
template <typename T, int D, int DV, int ROW_TILES>
[[kernel, max_total_threads_per_threadgroup(pomona::decode_threads(DV, ROW_TILES))]] void decode(
    constant pomona::AttentionParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* q [[buffer(POMONA_BUFFER_Q)]],
    const device T* k [[buffer(POMONA_BUFFER_K), function_constant(has_new_tokens)]],
    const device T* v [[buffer(POMONA_BUFFER_V), function_constant(has_new_tokens)]],
    const device T* k_cache [[buffer(POMONA_BUFFER_K_CACHE)]],
    const device T* v_cache [[buffer(POMONA_BUFFER_V_CACHE)]],
    const device int* slot_mapping
    [[buffer(POMONA_BUFFER_SLOT_MAPPING), function_constant(has_new_tokens)]],
    const device int* block_tables [[buffer(POMONA_BUFFER_BLOCK_TABLES)]],
    const device int* seq_lens [[buffer(POMONA_BUFFER_SEQ_LENS)]],
    const device int* cu_seqlens_q [[buffer(POMONA_BUFFER_CU_SEQLENS_Q)]],
    const device float* sinks [[buffer(POMONA_BUFFER_SINKS), function_constant(has_sinks)]],
    device T* out [[buffer(POMONA_BUFFER_OUT)]],
    device float* partials [[buffer(POMONA_BUFFER_PARTIALS), function_constant(has_partials)]],
    threadgroup float* memory [[threadgroup(0)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using namespace pomona;
  constexpr int dim_parts = decode_dim_parts(DV);
  constexpr int dims = DV / dim_parts;
  constexpr int key_parts = decode_key_parts(DV, ROW_TILES);
  constexpr int rows_per_group = ROW_TILES * kMatrixDim;

  Sequence seq = load_sequence(p, seq_lens, cu_seqlens_q, group_position.z);
  if (seq.q_len != 1) {
    return;
  }
  Splits splits = row_splits(
      seq.first_key(0, p.window), seq.last_key(0), p.keys_per_split, p.max_splits);
  int split = group_position.y;
  // Somebody writes the zeros of a row without keys.
  if (split >= metal::max(splits.count, 1)) {
    return;
  }
  int split_start = (splits.first_key / splits.length + split) * splits.length;
  int begin = metal::max(splits.first_key, split_start);
  int end = metal::min(splits.last_key, split_start + splits.length);

  int passes = (p.group + rows_per_group - 1) / rows_per_group;
  int kv_head = group_position.x / passes;
  int first_head = group_position.x % passes * rows_per_group;
  int num_heads = metal::min(p.group - first_head, rows_per_group);

  threadgroup T* queries = reinterpret_cast<threadgroup T*>(memory);
  stage_queries<T, D>(
      queries,
      q + seq.first_token * p.q.token + (kv_head * p.group + first_head) * p.q.head,
      p.q.head,
      rows_per_group,
      num_heads,
      thread_index,
      decode_threads(DV, ROW_TILES));
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);

  LaneMap at = lane_map(lane);
  int dim_part = simdgroup % dim_parts;
  int row_tile = simdgroup / dim_parts % ROW_TILES;
  int key_part = simdgroup / (dim_parts * ROW_TILES);
  KeyRows<T> rows = key_rows<T>(
      p, k, v, k_cache, v_cache, slot_mapping, block_tables, seq.index, kv_head);
  RowState<dims> state;
  clear(state.sums);
  state.largest = -INFINITY;
  state.sum = 0.0f;
  // Runs start at multiples of their length, so that 8 keys lie in one block.
  int first_step = begin / kDecodeKeys * kDecodeKeys;
  for (int step = first_step + key_part * kDecodeKeys; step < end;
       step += key_parts * kDecodeKeys) {
    LaneRows<T> lane_keys = lane_rows(p, rows, seq, step, begin, end, at);
    Matrix scores[kOctets];
    score<T, D>(
        scores,
        queries + row_tile * kMatrixDim * D + at.row * kMatrixDim + at.column,
        lane_keys,
        at);
    weigh(p, scores, state, step, begin, end, at);
    add_values<T, dims>(state.sums, scores, lane_keys, dim_part * dims, at);
  }

  // Halves the key parts until one is left: the order of the sums is always the same.
  constexpr int state_floats = decode_lane_floats(DV) * kSimdWidth;
  int owner = row_tile * dim_parts + dim_part;
  for (int half_parts = key_parts / 2; half_parts > 0; half_parts /= 2) {
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (key_part >= half_parts && key_part < 2 * half_parts) {
      int place = (key_part - half_parts) * ROW_TILES * dim_parts + owner;
      store_state(state, memory + place * state_floats, lane);
    }
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (key_part < half_parts) {
      int place = key_part * ROW_TILES * dim_parts + owner;
      fold_state(state, memory + place * state_floats, lane);
    }
  }

  int row = row_tile * kMatrixDim + at.row;
  float sum = row_sum(state.sum);
  if (key_part != 0 || row >= num_heads) {
    return;
  }
  int head = kv_head * p.group + first_head + row;
  if (splits.count > 1) {
    if (has_partials) {
      device float* partial = partials +
          ((int64_t(seq.index) * p.num_q_heads + head) * p.num_splits + split) * partial_floats(DV);
      if (dim_part == 0 && at.column == 0) {
        partial[0] = state.largest;
        partial[1] = sum;
      }
      write_row<T, float>(state, partial + 2 + dim_part * dims, 1.0f, at);
    }
    return;
  }
  float sink = 0.0f;
  if (has_sinks) {
    sink = sinks[head * p.sinks_stride];
  }
  float factor = final_factor(state.largest, sum, sink);
  device T* out_row = out + (int64_t(seq.first_token) * p.num_q_heads + head) * DV;
  write_row<T, T>(state, out_row + dim_part * dims, factor, at);
}
