// RMS normalisation and rotary positions of float32 rows as MLX primitives. MLX's CPU build makes
// each of them of a dozen element-wise operations on one thread.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

namespace pomona {

namespace mx = mlx::core;

// What both are: float32 in, float32 of the first input's shape out, on the CPU.
class FloatRows : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;

  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
};

// Inputs: x [..., dim], weight [dim].
class RMSNorm : public FloatRows {
 public:
  RMSNorm(mx::Stream stream, float epsilon) : FloatRows(stream), epsilon_(epsilon) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(RMSNorm)

 private:
  float epsilon_;
};

// Inputs: x [num_tokens, num_heads, 1, head_dim], positions int32 [num_tokens], frequencies [half].
class RotaryEmbedding : public FloatRows {
 public:
  RotaryEmbedding(mx::Stream stream, float scale) : FloatRows(stream), scale_(scale) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(RotaryEmbedding)

 private:
  float scale_;
};

// Both raise std::invalid_argument for other shapes and dtypes.
mx::array rms_norm(const mx::array& x, const mx::array& weight, float epsilon, mx::Stream stream);
mx::array rope(
    const mx::array& x,
    const mx::array& positions,
    const mx::array& frequencies,
    float scale,
    mx::Stream stream);

} // namespace pomona
