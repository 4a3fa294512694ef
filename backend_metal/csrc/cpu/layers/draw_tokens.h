// Draws of tokens as one MLX primitive. As a graph, top_p alone is dozens of operations over the
// vocabulary, of which a draw needs no more than some of its most likely tokens.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

namespace pomona {

namespace mx = mlx::core;

// Inputs: logits float32 [rows, vocab_size], options uint32 [rows, kDrawWords] (cpu/draw.h), counts
// int32 [counts_rows, vocab_size], bias_ids int32 [n], biases float32 [n]. Output: int32 [rows].
class DrawTokens : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(DrawTokens)
};

// Raises std::invalid_argument for other shapes and dtypes. What options say of places in the
// other arrays is not checked.
mx::array draw_tokens(
    const mx::array& logits,
    const mx::array& options,
    const mx::array& counts,
    const mx::array& bias_ids,
    const mx::array& biases,
    mx::Stream stream);

} // namespace pomona
