// One launch of the operator that rotates heads: its arrays, what it tells the kernel, and its grid.
#pragma once

#include "gpu/launch_plan.h"
#include "operators/rotate_heads.h"
#include "common/parameters.h"

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

// All but the runs.
RotateHeadsParameters parameters_of(
    const RotateHeadsArrays& arrays, const RotaryOptions& options);

// How a token's heads are shared out in runs.
struct RotaryRuns {
  int beside; // heads that a simdgroup has beside each other
  int many; // runs that keep a device busy
  int most; // heads of a run
};

// A simdgroup owns a run of one token's heads: of as few as it has beside each other where there are few tokens, so
// that many simdgroups are at work, and else of several, for which it computes the token's angles once. Says in
// `parameters` how long they are. Grid: (runs / kRotarySimdgroups, 1, 1).
GpuGrid plan_rotate_heads(RotateHeadsParameters& parameters, const RotaryRuns& runs);

// Of a head's dimensions, that a lane holds; a size of the kernel.
int rotary_pairs(int head_dim);

} // namespace pomona
