#include "gpu/rotate_heads.h"

#include <algorithm>
#include <cmath>

#include "common/constants.h"
#include "plan_arithmetic.h"

namespace pomona {

namespace {

// Strides of dimensions with one element are never used, and may be anything.
int64_t stride(const mx::array& in, int dim) {
  return in.shape(dim) > 1 ? in.strides(dim) : 0;
}

int64_t stride(const mx::array* in) {
  return in ? stride(*in, 0) : 0;
}

ElementStrides strides_of(const mx::array& in) {
  return {stride(in, 0), stride(in, 1), stride(in, 2)};
}

} // namespace

RotateHeadsArrays rotate_heads_arrays(
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs,
    const RotaryOptions& options) {
  return {
      inputs[0],
      inputs[1],
      inputs[2],
      options.has_norm ? &inputs[3] : nullptr,
      options.has_norm ? &inputs[4] : nullptr,
      options.has_frequencies() ? &inputs.back() : nullptr,
      outputs[0],
      outputs[1]};
}

RotateHeadsParameters parameters_of(const RotateHeadsArrays& a, const RotaryOptions& options) {
  RotateHeadsParameters p{};
  p.q = strides_of(a.q);
  p.k = strides_of(a.k);
  p.position = stride(&a.positions);
  p.q_weight = stride(a.q_weight);
  p.k_weight = stride(a.k_weight);
  p.frequency = stride(a.frequencies);
  p.num_tokens = a.q.shape(0);
  p.num_q_heads = a.q.shape(1);
  p.num_heads = a.q.shape(1) + a.k.shape(1);
  p.head_dim = a.q.shape(2);
  p.rotated_pairs = options.dims / 2;
  p.traditional = options.traditional;
  p.has_norm = options.has_norm;
  p.has_frequencies = options.has_frequencies();
  p.scale = options.scale;
  p.log2_base = p.has_frequencies ? 0.0f : std::log2(options.base);
  p.epsilon = options.epsilon;
  return p;
}

GpuGrid plan_rotate_heads(RotateHeadsParameters& p, const RotaryRuns& runs) {
  int64_t heads = int64_t(p.num_tokens) * p.num_heads;
  int most = static_cast<int>(std::clamp<int64_t>(heads / runs.many, runs.beside, runs.most));
  // A token's are equally long, but for what a simdgroup has beside each other.
  int equal = ceil_div(p.num_heads, ceil_div(p.num_heads, most));
  p.heads_per_run = ceil_div(equal, runs.beside) * runs.beside;
  p.runs_per_token = ceil_div(p.num_heads, p.heads_per_run);
  int64_t all = int64_t(p.num_tokens) * p.runs_per_token;
  return {ceil_div(all, kRotarySimdgroups), 1, 1, kRotarySimdgroups * kSimdWidth, 0};
}

int rotary_pairs(int head_dim) {
  return ceil_div(head_dim / 2, kSimdWidth);
}

} // namespace pomona
