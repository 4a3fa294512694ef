// Products with matrices of MLX's affine formats of 4 and 8 bits, which are unpacked on their way.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <vector>

namespace pomona::cuda {

namespace mx = mlx::core;

struct QuantizedFormat {
  int group_size;
  int bits;

  bool operator==(const QuantizedFormat&) const = default;
};

// Inputs: x [..., depth], contiguous; weights uint32 [outputs, depth * bits / 32], scales and biases
// [outputs, depth / group_size] of the dtype of x. Output: [..., outputs].
class QuantizedProduct : public mx::Primitive {
 public:
  // `reads_ahead`: the matrix was there before the graph was made that this is in.
  QuantizedProduct(mx::Stream stream, QuantizedFormat format, bool reads_ahead)
      : mx::Primitive(stream), format_(format), reads_ahead_(reads_ahead) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(QuantizedProduct)

 private:
  QuantizedFormat format_;
  bool reads_ahead_;
};

// x @ dequantized(weights).T. Raises std::invalid_argument for what there is no kernel for: other
// dtypes than float16 and bfloat16, and a depth that is no multiple of 512 / bits.
mx::array quantized_product(
    const mx::array& x,
    const mx::array& weights,
    const mx::array& scales,
    const mx::array& biases,
    QuantizedFormat format,
    mx::Stream stream);

} // namespace pomona::cuda
