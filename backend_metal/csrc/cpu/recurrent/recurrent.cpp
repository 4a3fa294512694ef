#include "cpu/recurrent/recurrent.h"

#include <algorithm>

#include "cpu/kernels/table.h"
#include "cpu/threads/thread_scratch.h"

namespace pomona::cpu {

namespace {

// Elements of state of one turn of a thread, at least: some microseconds of work.
constexpr int64_t kElements = 16384;

void single_rows(const LinearAttentionArguments& a, ThreadPool& pool) {
  const KernelTable& kernels = kernels_in_use();
  const int64_t scratch_floats = kernels.single_rows_floats(a);
  const int group = a.num_v_heads / a.num_k_heads;
  const int each = std::max<int64_t>(1, kElements / a.head_dim);
  const int parts = (group + each - 1) / each;
  pool.parallel_for(int64_t(a.slots.num_seqs) * a.num_k_heads * parts, [&](int64_t i) {
    const int seq = i / parts / a.num_k_heads, k_head = i / parts % a.num_k_heads;
    const int first = i % parts * each;
    kernels.single_rows(
        a,
        seq,
        k_head * group + first,
        std::min(each, group - first),
        thread_scratch(scratch_floats));
  });
}

} // namespace

void causal_conv(const ConvArguments& a, ThreadPool& pool) {
  const KernelTable& kernels = kernels_in_use();
  const int parts = (a.channels + kConvChannels - 1) / kConvChannels;
  pool.parallel_for(int64_t(a.slots.num_seqs) * parts, [&](int64_t i) {
    const int seq = i / parts, first = i % parts * kConvChannels;
    kernels.causal_conv(a, seq, first, std::min(kConvChannels, a.channels - first));
  });
}

void linear_attention(const LinearAttentionArguments& a, ThreadPool& pool) {
  if (a.head_dim_v == 1 && !a.delta_rule) {
    return single_rows(a, pool);
  }
  const KernelTable& kernels = kernels_in_use();
  const int64_t scratch_floats = kernels.linear_attention_floats(a);
  const int64_t heads = int64_t(a.slots.num_seqs) * a.num_v_heads;
  const int64_t each = std::max<int64_t>(1, kElements / (int64_t(a.head_dim) * a.head_dim_v));
  pool.parallel_for((heads + each - 1) / each, [&](int64_t turn) {
    float* scratch = thread_scratch(scratch_floats);
    for (int64_t i = turn * each; i < std::min(heads, (turn + 1) * each); i++) {
      kernels.linear_attention(a, i / a.num_v_heads, i % a.num_v_heads, scratch);
    }
  });
}

} // namespace pomona::cpu
