// exp(x) as an MLX primitive, for the reason that swiglu.h gives: the gates of a recurrent layer are
// one for each channel of a head, or of a state.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

namespace pomona {

namespace mx = mlx::core;

// Input: x, float32. Output: the same shape.
class Exponential : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(Exponential)
};

// Raises std::invalid_argument unless it is float32.
mx::array exponential(const mx::array& x, mx::Stream stream);

} // namespace pomona
