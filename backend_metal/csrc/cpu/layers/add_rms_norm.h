// What is between two blocks of a layer, a residual sum and the norm of it, as one primitive: MLX's
// sum has a node of its own, on one thread.
#pragma once

#include <vector>

#include "cpu/layers/float_rows.h"

namespace pomona {

// Inputs: a and b float32 [..., dim] of one shape, weight [dim]. Outputs: their sum, and that sum
// normalised.
class AddRMSNorm : public mx::Primitive {
 public:
  AddRMSNorm(mx::Stream stream, float epsilon) : mx::Primitive(stream), epsilon_(epsilon) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(AddRMSNorm)

 private:
  float epsilon_;
};

// rms_norm of float_rows.h, or mx::fast::rms_norm of other dtypes. Where `x` is a sum on `stream` that
// nobody has asked for yet, one primitive computes both, and `x` becomes its first output: whoever
// uses it from now on uses that, and MLX's sum is only computed where somebody took it before.
mx::array rms_norm_of_sum(
    mx::array& x, const mx::array& weight, float epsilon, mx::Stream stream);

} // namespace pomona
