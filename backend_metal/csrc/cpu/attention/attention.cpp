#include "cpu/attention/attention.h"

#include <memory>

#include "cpu/kernels/table.h"
#include "cpu/launch/launch_plan.h"
#include "cpu/threads/thread_scratch.h"

namespace pomona::cpu {

namespace {

// A tile's working set should leave room in a core's L2 (1 MB and more on the machines we run on).
constexpr int64_t kTileBytes = 512 << 10;

KeyRange keys_of(const AttentionArguments& a, const Task& task) {
  int group = a.num_q_heads / a.num_kv_heads;
  int q_len = a.cu_seqlens_q[task.seq + 1] - a.cu_seqlens_q[task.seq];
  return visible_keys(
      a.seq_lens[task.seq],
      q_len,
      task.first_row / group,
      (task.first_row + task.num_rows - 1) / group,
      a.window);
}

} // namespace

void attend(AttentionArguments a, ThreadPool& pool) {
  const KernelTable& kernels = kernels_in_use();
  AttentionShape shape{a.num_q_heads, a.num_kv_heads, a.head_dim, a.head_dim_v, a.window};
  CpuLimits limits{pool.num_threads(), kTileBytes};
  LaunchPlan plan =
      plan_launch(limits, shape, a.seq_lens, a.cu_seqlens_q, a.num_seqs, a.one_kernel);
  std::unique_ptr<float[]> partials;
  if (plan.num_partials) {
    partials.reset(new float[plan.num_partials * (a.head_dim_v + 2)]);
    a.partials = partials.get();
  }
  int64_t scratch_floats = kernels.scratch_floats(a);
  pool.parallel_for(plan.tasks.size(), [&](int64_t i) {
    const Task& task = plan.tasks[i];
    kernels.run_task(a, task, keys_of(a, task), thread_scratch(scratch_floats));
  });
  pool.parallel_for(plan.merges.size(), [&](int64_t i) {
    kernels.run_merge(a, plan.merges[i], thread_scratch(scratch_floats));
  });
}

} // namespace pomona::cpu
