// The product in the middle of a gated MLP, mlx-lm's `swiglu`; cpu/layers/swiglu.h has that of CPUs.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <vector>

namespace pomona::cuda {

namespace mx = mlx::core;

// Inputs: gate and up [..., width] of one shape, with at most 3 dimensions, and of one dtype. Output:
// silu(gate) * up, contiguous.
class SiluProduct : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(SiluProduct)
};

// Of any number of dimensions but none. Raises std::invalid_argument unless both are of one shape and
// dtype, float32, float16 or bfloat16.
mx::array silu_product(const mx::array& gate, const mx::array& up, mx::Stream stream);

} // namespace pomona::cuda
