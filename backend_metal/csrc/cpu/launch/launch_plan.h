// What one attention launch does on a CPU, decided from the sequences' lengths. A GPU, where these
// are not known yet, has a plan of its own: gpu/launch_plan.h.
//
// A *row* is one query token of one query head. The rows that share a K/V head of a sequence are
// numbered token * group + (head within the group). A *tile* is a range of those rows and is folded
// over *splits* of kKeysPerSplit keys. A *task* is the part of a tile that one thread
// runs. How tiles are cut into tasks depends on the machine and on the batch; no
// result does, because splits are always folded one by one, in order. The two kernels differ in their
// last bits, so with `one_kernel` there is only that for many rows, for a token alone, too: its result
// is then the same whether it is decoded or part of a prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_shape.h"

namespace pomona {

struct CpuLimits {
  int num_threads; // that run at once
  int64_t cache_bytes; // of one thread: what a tile's working set should fit
};

// One token of few heads is a stream of dot products, bound by memory; many rows are matrices.
enum class Kernel { decode, prefill };

struct Task {
  Kernel kernel;
  int seq;
  int first_row, num_rows;
  int first_head, num_heads; // K/V heads
  int first_split, num_splits;
  int64_t partial; // of (first_split, first_head, first_row); -1: folds by itself and writes out
  int64_t split_stride; // partials from one split to the next
  int64_t cost;
};

// Folds the partial states of a tile that several tasks computed.
struct Merge {
  int seq;
  int first_row, num_rows;
  int first_head, num_heads;
  int num_splits;
  int64_t partial;
};

struct LaunchPlan {
  int64_t num_partials;
  std::vector<Task> tasks; // longest first
  std::vector<Merge> merges;
};

// Keys [first, last) that queries [first_query, last_query] of a sequence see.
struct KeyRange {
  int first, last;

  bool empty() const {
    return first >= last;
  }
};
KeyRange visible_keys(int seq_len, int q_len, int first_query, int last_query, int window);

// `seq_lens` has `num_seqs` entries, `cu_seqlens_q` one more.
LaunchPlan plan_launch(
    const CpuLimits& limits,
    const AttentionShape& shape,
    const int* seq_lens,
    const int* cu_seqlens_q,
    int num_seqs,
    bool one_kernel = false);

} // namespace pomona
