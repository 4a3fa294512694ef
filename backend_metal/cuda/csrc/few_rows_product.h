// Products of few rows with a matrix of floats of 2 bytes, which take as long as reading the matrix, and
// of any number, each of which gets the bits that it gets alone.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <optional>
#include <vector>

namespace pomona::cuda {

namespace mx = mlx::core;

// Inputs: x [..., depth], contiguous; weights [outputs, depth] of its dtype. Output: [..., outputs].
// A gated one has a matrix of twice as many rows, and gives silu(gate) * up of what its halves make.
class FewRowsProduct : public mx::Primitive {
 public:
  // `reads_ahead`: the weights were there before the graph was made that this is in. `any_rows`: sums
  // are in an order that the matrix and the device alone decide.
  FewRowsProduct(mx::Stream stream, bool is_gated, bool reads_ahead, bool any_rows)
      : mx::Primitive(stream),
        is_gated_(is_gated),
        reads_ahead_(reads_ahead),
        any_rows_(any_rows) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(FewRowsProduct)

  bool is_gated() const {
    return is_gated_;
  }
  bool reads_ahead() const {
    return reads_ahead_;
  }
  bool any_rows() const {
    return any_rows_;
  }

 private:
  bool is_gated_;
  bool reads_ahead_;
  bool any_rows_;
};

// x @ weights.T. Raises std::invalid_argument for what there is no kernel for: other dtypes than float16
// and bfloat16, and a depth that is no multiple of 8.
mx::array few_rows_product(
    const mx::array& x, const mx::array& weights, bool any_rows, mx::Stream stream);

// silu(gate) * up, if these are the halves of one product that is not computed yet.
std::optional<mx::array> gated_few_rows_product(
    const mx::array& gate, const mx::array& up, mx::Stream stream);

} // namespace pomona::cuda
