// Products with float32 matrices that lie as their products read them, as an MLX primitive
// (cpu/gemm/gemm.h). A matrix as it is stored has one column's elements behind one another, which few
// rows take as long to turn as to read.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

namespace pomona {

namespace mx = mlx::core;

// Inputs: x float32 [..., depth], panels float32 [panels, depth, 8]. Output: float32
// [..., num_columns].
class PanelProduct : public mx::UnaryPrimitive {
 public:
  PanelProduct(mx::Stream stream, int num_columns)
      : UnaryPrimitive(stream), num_columns_(num_columns) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(PanelProduct)

 private:
  int num_columns_;
};

// Inputs: indices int32 of any shape, panels as PanelProduct has them. Output: float32 [..., depth].
class PanelRows : public mx::UnaryPrimitive {
 public:
  PanelRows(mx::Stream stream, int num_rows) : UnaryPrimitive(stream), num_rows_(num_rows) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(PanelRows)

 private:
  int num_rows_;
};

// x w^T, with w [num_columns, depth] in panels. Raises std::invalid_argument for other shapes and
// dtypes.
mx::array panel_product(
    const mx::array& x, const mx::array& panels, int num_columns, mx::Stream stream);

// Rows of w, from its end where an index is negative. Raises std::invalid_argument for other shapes and
// dtypes; an index that w does not have is an error of the evaluation.
mx::array panel_rows(
    const mx::array& indices, const mx::array& panels, int num_rows, mx::Stream stream);

// float32 [num_columns, depth] as panels of 8 columns of the product, [panels, depth, 8], with zeros
// behind the last column: evaluated, on huge pages where the system has them for new memory. Raises
// std::invalid_argument for other shapes and dtypes.
mx::array lay_in_panels(mx::array weight, mx::Stream stream);

} // namespace pomona
