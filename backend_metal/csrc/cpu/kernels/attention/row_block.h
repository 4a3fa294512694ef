// The query rows of a prefill task, Vectors * kLanes at a time: what goes in, and the softmax states
// that come out. A row is a lane, so all arrays are transposed: [dim, row].
#pragma once

#include "cpu/kernels/attention/softmax_state.h"
#include "cpu/launch/launch_plan.h"

namespace pomona::cpu::POMONA_INSTRUCTION_SET {

// One block of rows; all arrays are [..., kRows].
template <int Vectors>
struct RowBlock {
  static constexpr int kRows = Vectors * kLanes;
  float* queries; // [head_dim, rows], scaled
  float* largest; // of the current split
  float* sum;
  float* values; // [head_dim_v, rows]
  float* folded_largest; // of all splits so far
  float* folded_sum;
  float* folded_values;
  int32_t* first; // keys [first, last) are visible to a row
  int32_t* last;
  int least_first, most_first, least_last, most_last;

  static int64_t floats(const AttentionArguments& a) {
    return kRows * (int64_t(a.head_dim) + 2 * a.head_dim_v + 6);
  }

  void lay_out(const AttentionArguments& a, float* memory) {
    queries = memory;
    values = queries + kRows * a.head_dim;
    folded_values = values + kRows * a.head_dim_v;
    largest = folded_values + kRows * a.head_dim_v;
    sum = largest + kRows;
    folded_largest = sum + kRows;
    folded_sum = folded_largest + kRows;
    first = (int32_t*)(folded_sum + kRows);
    last = first + kRows;
  }
};

// Queries, and the keys that each row sees; rows past the last repeat it, with queries of 0.
template <int Vectors, typename T>
inline void load_rows(
    const AttentionArguments& a, const Task& task, int first_row, RowBlock<Vectors>& block) {
  constexpr int kRows = RowBlock<Vectors>::kRows;
  int group = a.num_q_heads / a.num_kv_heads;
  int q_len = a.cu_seqlens_q[task.seq + 1] - a.cu_seqlens_q[task.seq];
  int before = a.seq_lens[task.seq] - q_len;
  int end_row = task.first_row + task.num_rows;
  block.least_first = block.least_last = INT32_MAX;
  block.most_first = block.most_last = 0;
  for (int r = 0; r < kRows; r++) {
    int row = first_row + r;
    bool real = row < end_row;
    row = real ? row : end_row - 1;
    int last = before + row / group + 1;
    last = last > 0 ? last : 0;
    int first = a.window > 0 && last > a.window ? last - a.window : 0;
    block.first[r] = first;
    block.last[r] = last;
    block.least_first = first < block.least_first ? first : block.least_first;
    block.most_first = first > block.most_first ? first : block.most_first;
    block.least_last = last < block.least_last ? last : block.least_last;
    block.most_last = last > block.most_last ? last : block.most_last;
    const T* q = q_row<T>(a, task.seq, row, task.first_head);
    for (int d = 0; d < a.head_dim; d += kLanes) {
      Floats dims = real ? load(q + d) * a.scale : Floats{};
      for (int i = 0; i < kLanes; i++) {
        block.queries[(d + i) * kRows + r] = dims[i];
      }
    }
  }
}

template <int Vectors>
inline void clear_block(const AttentionArguments& a, float* largest, float* sum, float* values) {
  constexpr int kRows = Vectors * kLanes;
  for (int j = 0; j < kRows; j += kLanes) {
    store(largest + j, fill(-kInfinity));
    store(sum + j, Floats{});
  }
  __builtin_memset(values, 0, sizeof(float) * kRows * a.head_dim_v);
}

// The same arithmetic as fold() in softmax_state.h, a row in each lane.
template <int Vectors>
inline void fold_block(const AttentionArguments& a, RowBlock<Vectors>& block) {
  constexpr int kRows = Vectors * kLanes;
  for (int j = 0; j < kRows; j += kLanes) {
    Floats before = load(block.folded_largest + j), split = load(block.largest + j);
    Floats top = max(split, before);
    Floats base = finite_or_zero(top);
    Floats kept = exp(before - base), added = exp(split - base);
    store(block.folded_largest + j, top);
    store(
        block.folded_sum + j, load(block.folded_sum + j) * kept + load(block.sum + j) * added);
    for (int d = 0; d < a.head_dim_v; d++) {
      float* total = block.folded_values + d * kRows + j;
      store(total, fma(load(total), kept, load(block.values + d * kRows + j) * added));
    }
  }
}

template <int Vectors>
inline void gather_row(const float* values, int row, int head_dim_v, float* out) {
  for (int d = 0; d < head_dim_v; d++) {
    out[d] = values[d * Vectors * kLanes + row];
  }
}

template <int Vectors, typename T>
inline void write_blocks(
    const AttentionArguments& a, const Task& task, const RowBlock<Vectors>* blocks, float* row) {
  constexpr int kRows = RowBlock<Vectors>::kRows;
  for (int r = 0; r < task.num_rows; r++) {
    const auto& block = blocks[r / kRows];
    int lane = r % kRows, tile_row = task.first_row + r;
    gather_row<Vectors>(block.folded_values, lane, a.head_dim_v, row);
    float factor = final_factor(
        block.folded_largest[lane],
        block.folded_sum[lane],
        a.sinks,
        q_head_of(a, tile_row, task.first_head));
    write_row(out_row<T>(a, task.seq, tile_row, task.first_head), row, factor, a.head_dim_v);
  }
}

template <int Vectors>
inline void store_partials(
    const AttentionArguments& a, int num_rows, const RowBlock<Vectors>* blocks, float* states) {
  constexpr int kRows = RowBlock<Vectors>::kRows;
  for (int r = 0; r < num_rows; r++) {
    const auto& block = blocks[r / kRows];
    float* state = states + r * partial_floats(a);
    state[0] = block.largest[r % kRows];
    state[1] = block.sum[r % kRows];
    gather_row<Vectors>(block.values, r % kRows, a.head_dim_v, state + 2);
  }
}

} // namespace pomona::cpu::POMONA_INSTRUCTION_SET
