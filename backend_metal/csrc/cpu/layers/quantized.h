// Products with quantized matrices as MLX primitives (cpu/gemm/gemm.h). MLX's CPU build unpacks element by
// element on one thread.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

namespace pomona {

namespace mx = mlx::core;

// MLX's affine format.
struct Quantization {
  int bits;
  int group_size;

  bool operator==(const Quantization&) const = default;
};

// Of `ndim` dimensions, of which the last two are the matrix's. Raises std::invalid_argument for other
// shapes, dtypes and formats.
void check_matrix(
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    size_t ndim);

// Inputs: x float32 [..., depth]; words uint32 [num_columns, depth * bits / 32]; scales and biases
// [num_columns, depth / group_size]. Output: float32 [..., num_columns].
// With a fifth input, int32 [num_rows], x is [num_rows, depth], the matrices are stacked, and it says
// which of them a row meets.
class QuantizedProduct : public mx::UnaryPrimitive {
 public:
  QuantizedProduct(mx::Stream stream, Quantization quantization)
      : UnaryPrimitive(stream), quantization_(quantization) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(QuantizedProduct)

 private:
  Quantization quantization_;
};

// Both raise std::invalid_argument for other shapes, dtypes and formats.
mx::array quantized_matmul(
    const mx::array& x,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    mx::Stream stream);
mx::array gather_quantized_matmul(
    const mx::array& x,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    const mx::array& indices,
    Quantization quantization,
    mx::Stream stream);

} // namespace pomona
