#include "cpu/layers/quantized.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <stdexcept>

#include "cpu/gemm/gemm.h"
#include "cpu/arrays/contiguous.h"

namespace pomona {

namespace {

gemm::ScaleType scale_type(mx::Dtype dtype) {
  if (dtype == mx::float32) {
    return gemm::ScaleType::float32;
  }
  return dtype == mx::float16 ? gemm::ScaleType::float16 : gemm::ScaleType::bfloat16;
}

// Rows in a row that meet one matrix are one product.
void multiply_runs(
    const float* x,
    const int32_t* indices,
    int64_t num_rows,
    int num_matrices,
    const gemm::QuantizedMatrix& stacked,
    int64_t scale_bytes,
    float* out) {
  const int64_t depth = stacked.depth, columns = stacked.columns;
  const int64_t words = columns * depth * stacked.bits / 32;
  const int64_t scales = columns * depth / stacked.group_size * scale_bytes;
  for (int64_t first = 0, last; first < num_rows; first = last) {
    const int32_t index = indices[first];
    if (index < 0 || index >= num_matrices) {
      throw std::out_of_range(
          "indices must be in [0, " + std::to_string(num_matrices) + "), not " +
          std::to_string(index));
    }
    for (last = first + 1; last < num_rows && indices[last] == index;) {
      last++;
    }
    gemm::QuantizedMatrix matrix = stacked;
    matrix.words += index * words;
    matrix.scales = static_cast<const char*>(stacked.scales) + index * scales;
    matrix.biases = static_cast<const char*>(stacked.biases) + index * scales;
    gemm::quantized_product(
        last - first, x + first * depth, matrix, out + first * columns);
  }
}

void check(bool holds, const char* message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

void check_format(Quantization quantization) {
  auto [bits, group_size] = quantization;
  check((bits >= 2 && bits <= 6) || bits == 8, "bits must be 2, 3, 4, 5, 6 or 8");
  check(
      group_size == 32 || group_size == 64 || group_size == 128,
      "group_size must be 32, 64 or 128");
}

void check_arguments(
    const mx::array& x,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    size_t ndim) {
  auto [bits, group_size] = quantization;
  check_format(quantization);
  check(x.dtype() == mx::float32, "x must be float32");
  check(x.ndim() > 0 && x.shape(-1) % group_size == 0, "x must have rows of whole groups");
  check(words.ndim() > 0 && int64_t(words.shape(-1)) * 32 == int64_t(x.shape(-1)) * bits,
        "words must have as many elements a row as x");
  check_matrix(words, scales, biases, quantization, ndim);
  check(gemm::kernel_name() != nullptr, "this processor has no kernel for quantized products");
}

mx::array product(
    mx::Shape shape,
    std::vector<mx::array> inputs,
    Quantization quantization,
    mx::Stream stream) {
  return mx::array(
      std::move(shape),
      mx::float32,
      std::make_shared<QuantizedProduct>(stream, quantization),
      std::move(inputs));
}

} // namespace

void check_matrix(
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    size_t ndim) {
  check_format(quantization);
  check(words.dtype() == mx::uint32, "words must be uint32");
  check(mx::issubdtype(scales.dtype(), mx::floating) && scales.itemsize() <= 4,
        "scales must be float32, float16 or bfloat16");
  check(biases.dtype() == scales.dtype(), "biases must be of the scales' dtype");
  check(words.ndim() == ndim, "words must have one row a column of the product");
  check(scales.ndim() == ndim, "scales must have as many dimensions as words");
  check(biases.shape() == scales.shape(), "biases must have the scales' shape");
  mx::Shape of_scales = words.shape();
  const int64_t bits = int64_t(words.shape(-1)) * 32;
  const int64_t bits_of_group = quantization.bits * quantization.group_size;
  of_scales.back() = static_cast<int>(bits / bits_of_group);
  check(bits % bits_of_group == 0 && scales.shape() == of_scales,
        "scales must have one element a group of words");
}

void QuantizedProduct::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const mx::array x = row_contiguous(inputs[0], encoder);
  const mx::array words = row_contiguous(inputs[1], encoder);
  const mx::array scales = row_contiguous(inputs[2], encoder);
  const gemm::QuantizedMatrix matrix{
      words.data<uint32_t>(),
      scales.data<void>(),
      row_contiguous(inputs[3], encoder).data<void>(),
      scale_type(scales.dtype()),
      quantization_.bits,
      quantization_.group_size,
      out.shape(-1),
      x.shape(-1)};
  const int64_t num_rows = x.size() / matrix.depth;
  if (inputs.size() == 4) {
    encoder.dispatch([x = x.data<float>(), matrix, num_rows, out = out.data<float>()]() {
      gemm::quantized_product(num_rows, x, matrix, out);
    });
    return;
  }
  encoder.dispatch([x = x.data<float>(),
                    indices = row_contiguous(inputs[4], encoder).data<int32_t>(),
                    num_rows,
                    num_matrices = words.shape(0),
                    matrix,
                    scale_bytes = static_cast<int64_t>(scales.itemsize()),
                    out = out.data<float>()]() {
    multiply_runs(x, indices, num_rows, num_matrices, matrix, scale_bytes, out);
  });
}

void QuantizedProduct::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("QuantizedProduct has no GPU kernel");
}

std::vector<mx::Shape> QuantizedProduct::output_shapes(const std::vector<mx::array>& inputs) {
  mx::Shape shape = inputs[0].shape();
  shape.back() = inputs[1].shape(-2);
  return {shape};
}

bool QuantizedProduct::is_equivalent(const mx::Primitive& other) const {
  return quantization_ == static_cast<const QuantizedProduct&>(other).quantization_;
}

mx::array quantized_matmul(
    const mx::array& x,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    mx::Stream stream) {
  check_arguments(x, words, scales, biases, quantization, 2);
  mx::Shape shape = x.shape();
  shape.back() = words.shape(0);
  return product(std::move(shape), {x, words, scales, biases}, quantization, stream);
}

mx::array gather_quantized_matmul(
    const mx::array& x,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    const mx::array& indices,
    Quantization quantization,
    mx::Stream stream) {
  check_arguments(x, words, scales, biases, quantization, 3);
  check(x.ndim() == 2, "x must be [num_rows, depth]");
  check(indices.dtype() == mx::int32 && indices.shape() == mx::Shape{x.shape(0)},
        "indices must be int32 [num_rows]");
  mx::Shape shape{x.shape(0), words.shape(1)};
  return product(std::move(shape), {x, words, scales, biases, indices}, quantization, stream);
}

} // namespace pomona
