// The operator between a projection and attention on the CPU: float32 heads of queries and of keys,
// normalised and rotated by one primitive. A graph of two norms, two rotations and what turns their
// inputs and outputs has a dozen nodes, of which each costs one user alone some microseconds.
#pragma once

#include "cpu/layers/float_rows.h"
#include "operators/rotate_heads.h"

namespace pomona {

// Inputs: q [num_tokens, num_q_heads, head_dim], k [num_tokens, num_kv_heads, head_dim], positions
// int32 [num_tokens], frequencies [half], by which positions are multiplied, then weights of q and k
// [head_dim] where there is a norm. Outputs: q and k, contiguous.
class FloatHeads : public mx::Primitive {
 public:
  FloatHeads(mx::Stream stream, float scale, float epsilon)
      : mx::Primitive(stream), scale_(scale), epsilon_(epsilon) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(FloatHeads)

 private:
  float scale_; // of positions
  float epsilon_; // of the norm
};

// As the operator of GPUs, with the bits that rms_norm and rope have of float_rows.h. Other dtypes, and
// pairs of neighbours, are left to MLX's operators.
RotateHeadsFunction rotate_heads_on_cpu;

} // namespace pomona
