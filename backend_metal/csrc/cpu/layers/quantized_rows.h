// Rows of a quantized matrix as floats, which is how tokens are embedded. MLX unpacks with some forty
// operators, each of which takes as long as all of this for a few rows.
#pragma once

#include "cpu/layers/quantized.h"

namespace pomona {

// Inputs: indices int32 of any shape; words, scales and biases as QuantizedProduct has them. Output:
// float32 [..., depth].
class QuantizedRows : public mx::UnaryPrimitive {
 public:
  QuantizedRows(mx::Stream stream, Quantization quantization)
      : UnaryPrimitive(stream), quantization_(quantization) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(QuantizedRows)

 private:
  Quantization quantization_;
};

// Raises std::invalid_argument for other shapes, dtypes and formats.
mx::array quantized_rows(
    const mx::array& indices,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    mx::Stream stream);

} // namespace pomona
