// Tokens that are drawn, and not read yet, in their places of the step behind: one launch, where MLX's
// operators take five. backend_metal/devices/pending_tokens.py has them.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <vector>

namespace pomona::cuda {

namespace mx = mlx::core;

// Inputs: token_ids [tokens] and drawn [rows], int32. Output: token_ids, where each that is -1 - row
// is that row's of `drawn`.
class FillInTokens : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(FillInTokens)
};

// Raises std::invalid_argument unless both are int32 of one dimension. Rows are not checked: they are
// not known yet.
mx::array fill_in_tokens(const mx::array& token_ids, const mx::array& drawn, mx::Stream stream);

} // namespace pomona::cuda
