// One launch of the operator that rotates heads: its arrays, what it tells the kernel, and its grid.
#pragma once

#include "gpu/launch_plan.h"
#include "operators/rotate_heads.h"
#include "parameters.h"

namespace pomona {

struct RotateHeadsArrays {
  const mx::array& q;
  const mx::array& k;
  const mx::array& positions;
  const mx::array* q_weight; // null: no norm
  const mx::array* k_weight;
  const mx::array* frequencies; // null: of the base
  mx::array& q_out;
  mx::array& k_out;

  bool empty() const {
    return q.size() + k.size() == 0;
  }
};

// Of a primitive's inputs and outputs.
RotateHeadsArrays rotate_heads_arrays(
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs,
    const RotaryOptions& options);

RotateHeadsParameters parameters_of(
    const RotateHeadsArrays& arrays, const RotaryOptions& options);

// A simdgroup owns a run of one token's heads: on Metal one alone where there are few tokens, so that many
// simdgroups are at work, and else several, for which it computes the token's angles once. CUDA has runs of its
// own, likewise. Grid: (runs / kRotarySimdgroups, 1, 1).
GpuGrid plan_rotate_heads(const RotateHeadsParameters& parameters);

// Of a head's dimensions, that a lane holds; a size of the kernel.
int rotary_pairs(int head_dim);

} // namespace pomona
