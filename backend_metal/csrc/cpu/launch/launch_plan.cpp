#include "cpu/launch/launch_plan.h"

#include <algorithm>

#include "common/constants.h"
#include "plan_arithmetic.h"

namespace pomona {

namespace {

// Tasks for each thread: enough that the slowest one does not leave the others waiting.
constexpr int kTasksPerThread = 8;
// Below this, handing work to another thread takes longer than doing it.
constexpr int64_t kMinTaskCost = 4096;

// The rows of one sequence that share their K/V, before they are cut into tasks.
struct Tile {
  Kernel kernel;
  int seq;
  int first_row, num_rows;
  int first_head, num_heads;
  int first_split, num_splits;
  int64_t cost;
};

Tile make_tile(
    const AttentionShape& shape,
    Kernel kernel,
    int seq,
    int seq_len,
    int q_len,
    int first_row,
    int num_rows,
    int first_head,
    int num_heads) {
  int group = shape.group();
  KeyRange keys = visible_keys(
      seq_len, q_len, first_row / group, (first_row + num_rows - 1) / group, shape.window);
  int first_split = keys.first / kKeysPerSplit;
  int num_splits = keys.empty() ? 0 : ceil_div(keys.last, kKeysPerSplit) - first_split;
  int64_t num_keys = keys.empty() ? 0 : keys.last - keys.first;
  // Reading a key takes as long as using it for a few rows.
  int64_t cost = num_keys * num_heads * std::max(num_rows, 4) + num_heads * num_rows;
  return {kernel, seq, first_row, num_rows, first_head, num_heads, first_split, num_splits, cost};
}

std::vector<Tile> make_tiles(
    const AttentionShape& shape,
    int rows,
    const int* seq_lens,
    const int* cu_seqlens_q,
    int num_seqs,
    bool one_kernel) {
  std::vector<Tile> tiles;
  for (int seq = 0; seq < num_seqs; seq++) {
    int q_len = cu_seqlens_q[seq + 1] - cu_seqlens_q[seq];
    if (q_len <= 0) {
      continue;
    }
    if (q_len == 1 && shape.group() < kTiledGroup && !one_kernel) {
      tiles.push_back(make_tile(
          shape, Kernel::decode, seq, seq_lens[seq], 1, 0, shape.group(), 0, shape.num_kv_heads));
      continue;
    }
    int num_rows = q_len * shape.group();
    for (int head = 0; head < shape.num_kv_heads; head++) {
      for (int row = 0; row < num_rows; row += rows) {
        tiles.push_back(make_tile(
            shape,
            Kernel::prefill,
            seq,
            seq_lens[seq],
            q_len,
            row,
            std::min(rows, num_rows - row),
            head,
            1));
      }
    }
  }
  return tiles;
}

// Cuts a tile into about `pieces` tasks: by keys, which are read as they lie, then by heads.
void cut(const Tile& tile, int pieces, LaunchPlan& plan) {
  int splits_per_task = tile.num_splits;
  if (tile.num_splits > 1) {
    splits_per_task = ceil_div(tile.num_splits, std::min(pieces, tile.num_splits));
  }
  bool whole = splits_per_task == tile.num_splits;
  int split_tasks = whole ? 1 : ceil_div(tile.num_splits, splits_per_task);
  int heads_per_task = ceil_div(tile.num_heads, std::max(1, ceil_div(pieces, split_tasks)));
  int64_t split_stride = int64_t(tile.num_heads) * tile.num_rows;
  int64_t first_partial = plan.num_partials;
  for (int s = 0; s < split_tasks; s++) {
    int first_split = s * splits_per_task;
    int num_splits = std::min(splits_per_task, tile.num_splits - first_split);
    for (int head = 0; head < tile.num_heads; head += heads_per_task) {
      int num_heads = std::min(heads_per_task, tile.num_heads - head);
      int64_t partial =
          whole ? -1 : first_partial + first_split * split_stride + int64_t(head) * tile.num_rows;
      plan.tasks.push_back(
          {tile.kernel,
           tile.seq,
           tile.first_row,
           tile.num_rows,
           tile.first_head + head,
           num_heads,
           tile.first_split + first_split,
           num_splits,
           partial,
           split_stride,
           tile.cost * num_splits * num_heads /
               (std::max(tile.num_splits, 1) * int64_t(tile.num_heads))});
    }
  }
  if (!whole) {
    plan.num_partials += tile.num_splits * split_stride;
    plan.merges.push_back(
        {tile.seq,
         tile.first_row,
         tile.num_rows,
         tile.first_head,
         tile.num_heads,
         tile.num_splits,
         first_partial});
  }
}

// The working set: queries, two accumulators, scores, one tile of K and V.
int64_t tile_bytes(const AttentionShape& shape, int rows) {
  int64_t row = shape.head_dim + 2 * shape.head_dim_v + kKeyTile;
  int64_t key = shape.head_dim + shape.head_dim_v;
  return sizeof(float) * (rows * row + kKeyTile * key);
}

int tile_rows(const CpuLimits& limits, const AttentionShape& shape) {
  int rows = kMaxTileRows;
  while (rows > kTiledGroup && tile_bytes(shape, rows) > limits.cache_bytes) {
    rows /= 2;
  }
  return rows;
}

} // namespace

KeyRange visible_keys(int seq_len, int q_len, int first_query, int last_query, int window) {
  int before = seq_len - q_len;
  int last = std::max(before + last_query + 1, 0);
  int first = window > 0 ? std::max(before + first_query - (window - 1), 0) : 0;
  return {std::min(first, last), last};
}

LaunchPlan plan_launch(
    const CpuLimits& limits,
    const AttentionShape& shape,
    const int* seq_lens,
    const int* cu_seqlens_q,
    int num_seqs,
    bool one_kernel) {
  LaunchPlan plan{};
  auto tiles =
      make_tiles(shape, tile_rows(limits, shape), seq_lens, cu_seqlens_q, num_seqs, one_kernel);
  int64_t total = 0;
  for (const auto& tile : tiles) {
    total += tile.cost;
  }
  int64_t most_tasks = limits.num_threads > 1 ? int64_t(limits.num_threads) * kTasksPerThread : 1;
  int64_t task_cost = std::max(kMinTaskCost, total / most_tasks);
  for (const auto& tile : tiles) {
    cut(tile, limits.num_threads > 1 ? std::max(1, ceil_div(tile.cost, task_cost)) : 1, plan);
  }
  std::stable_sort(plan.tasks.begin(), plan.tasks.end(), [](const Task& a, const Task& b) {
    return a.cost > b.cost;
  });
  return plan;
}

} // namespace pomona
