// Launches of the recurrent operators: their arrays, and what they tell kernels.
#pragma once

#include "operators/recurrent.h"
#include "common/parameters.h"

namespace pomona {

struct ConvArrays {
  const mx::array& x;
  const mx::array& weight;
  const mx::array* bias;
  const mx::array& read_slots;
  const mx::array& write_slots;
  const mx::array& cu_seqlens_q;
  mx::array& out;
  mx::array& states; // the output

  bool empty() const {
    return x.size() == 0;
  }
};

struct LinearAttentionArrays {
  const mx::array& q;
  const mx::array& k;
  const mx::array& v;
  const mx::array& gates;
  const mx::array& betas;
  const mx::array& read_slots;
  const mx::array& write_slots;
  const mx::array& cu_seqlens_q;
  mx::array& out;
  mx::array& states; // the output

  bool empty() const {
    return v.size() == 0;
  }
};

// Of a primitive's inputs and outputs; the states that go out are those that come in. Raise
// std::invalid_argument where an array that kernels take to be contiguous is not.
ConvArrays conv_arrays(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
LinearAttentionArrays linear_attention_arrays(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);

ConvParameters parameters_of(const ConvArrays& arrays);
LinearAttentionParameters parameters_of(
    const LinearAttentionArrays& arrays, bool delta_rule, bool gates_are_rates);

} // namespace pomona
