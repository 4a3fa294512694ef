// What is between two blocks of a layer: a residual sum, and the norm of it.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <vector>

namespace pomona::cuda {

namespace mx = mlx::core;

// Inputs: a and b [..., width] of one shape, with at most 3 dimensions, and weight [width], all of one
// dtype. Outputs: their sum, and that sum normalised, contiguous.
class AddRmsNorm : public mx::Primitive {
 public:
  AddRmsNorm(mx::Stream stream, float epsilon) : mx::Primitive(stream), epsilon_(epsilon) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(AddRmsNorm)

 private:
  float epsilon_;
};

// mx::fast::rms_norm of `x`. Where that is a sum on `stream` that nobody has asked for yet, one
// primitive computes both, and `x` becomes its first output: whoever uses it from now on uses that,
// and MLX's sum is only computed where somebody took it before.
mx::array rms_norm_of_sum(
    mx::array& x, const mx::array& weight, float epsilon, mx::Stream stream);

} // namespace pomona::cuda
