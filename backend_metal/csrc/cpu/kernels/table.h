// One entry for each instruction set that the kernels are compiled for.
#pragma once

#include "cpu/launch/arguments.h"
#include "cpu/launch/draw_arguments.h"
#include "cpu/launch/launch_plan.h"
#include "cpu/launch/recurrent_arguments.h"

namespace pomona::cpu {

struct KernelTable {
  const char* name;
  // Floats of scratch memory that any task of these arguments needs.
  int64_t (*scratch_floats)(const AttentionArguments& arguments);
  // `keys` are those that the task's rows see.
  void (*run_task)(
      const AttentionArguments& arguments, const Task& task, KeyRange keys, float* scratch);
  void (*run_merge)(const AttentionArguments& arguments, const Merge& merge, float* scratch);
  // float32 [count]: exp or tanh of `in`, which `out` may be; count is a multiple of 16.
  void (*exp)(const float* in, float* out, int64_t count);
  void (*tanh)(const float* in, float* out, int64_t count);
  // float32 [count]: silu(gate) * up; `out` may be either of them.
  void (*swiglu)(const float* gate, const float* up, float* out, int64_t count);
  // float32 [rows, dim]; see norm.h. `out` may be `in`.
  void (*rms_norm)(
      const float* in, const float* weight, float epsilon, float* out, int64_t rows, int64_t dim);
  // float32 [2, half] of one position; see rope.h.
  void (*find_angles)(float position, const float* frequencies, int half, float* angles);
  // float32 [heads, head_dim] of one token; see rope.h. `out` may be `x`.
  void (*rotate)(
      const float* x, float* out, const float* angles, int half, int heads, int head_dim);
  // `count` channels of one sequence; see causal_conv.h.
  void (*causal_conv)(const ConvArguments& arguments, int seq, int first_channel, int count);
  // Floats of scratch memory that linear_attention needs.
  int64_t (*linear_attention_floats)(const LinearAttentionArguments& arguments);
  // One head of one sequence; see linear_attention.h.
  void (*linear_attention)(
      const LinearAttentionArguments& arguments, int seq, int head, float* scratch);
  // Floats of scratch memory that single_rows needs.
  int64_t (*single_rows_floats)(const LinearAttentionArguments& arguments);
  // Heads of one key, of one sequence, where head_dim_v is 1 and there is no delta rule; see
  // single_rows.h.
  void (*single_rows)(
      const LinearAttentionArguments& arguments,
      int seq,
      int first_head,
      int num_heads,
      float* scratch);
  // Of the logits of one row; see draw.h.
  float (*find_maxima)(const float* logits, int64_t count, float* maxima);
  void (*penalise)(const float* logits, int64_t count, Penalties penalties, float* out);
  uint64_t (*sum_weights)(DrawLogits row);
  void (*weigh)(
      DrawLogits row, const float* logits, int64_t count, float* out, int32_t* weights);
  Weighed (*weigh_from)(
      const float* logits, const int32_t* weights, int64_t count, float least);
  int64_t (*collect)(DrawLogits row, float least, int32_t* ids);
  int32_t (*draw_among)(
      const uint32_t* key, const int32_t* ids, const float* z, int64_t count, int64_t size);
  int32_t (*draw_among_all)(DrawLogits row, const uint32_t* key, int32_t likely);
};

// By instruction set: "avx512", "avx2" or "baseline" (SSE2, or NEON on arm64). Null where this machine
// cannot run it.
const KernelTable* find_kernels(const char* name);

// The fastest that this machine runs, unless another was set.
const KernelTable& kernels_in_use();
// Raises std::invalid_argument when this machine cannot run it.
void set_instruction_set(const char* name);

} // namespace pomona::cpu
