#include "cpu/layers/quantized_rows.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/threads/thread_pool.h"
#include "cpu/arrays/contiguous.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: some microseconds of work.
constexpr int64_t kElements = 8192;

struct Matrix {
  const uint32_t* words;
  const void* scales;
  const void* biases;
  Quantization quantization;
  int num_rows;
  int64_t depth;
};

// Elements lie bit behind bit, the lowest first, and none of them over more than two words.
template <typename Scale>
void unpack_row(const Matrix& m, int64_t row, float* out) {
  const int64_t bits = m.quantization.bits, group_size = m.quantization.group_size;
  const uint32_t* words = m.words + row * m.depth * bits / 32;
  const auto* scales = static_cast<const Scale*>(m.scales) + row * m.depth / group_size;
  const auto* biases = static_cast<const Scale*>(m.biases) + row * m.depth / group_size;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0; i < m.depth; i++) {
    const int64_t word = i * bits / 32, shift = i * bits % 32;
    uint64_t both = words[word];
    if (shift + bits > 32) {
      both |= uint64_t(words[word + 1]) << 32;
    }
    const auto element = static_cast<float>(both >> shift & mask);
    const int64_t group = i / group_size;
    out[i] = element * static_cast<float>(scales[group]) + static_cast<float>(biases[group]);
  }
}

template <typename Scale>
void unpack_rows(const Matrix& m, const int32_t* indices, int64_t count, float* out) {
  const int64_t each = std::max<int64_t>(1, kElements / m.depth);
  cpu::ThreadPool::shared().parallel_for((count + each - 1) / each, [&](int64_t turn) {
    for (int64_t i = turn * each; i < std::min(count, (turn + 1) * each); i++) {
      unpack_row<Scale>(m, indices[i], out + i * m.depth);
    }
  });
}

void check_indices(const int32_t* indices, int64_t count, int num_rows) {
  for (int64_t i = 0; i < count; i++) {
    if (indices[i] < 0 || indices[i] >= num_rows) {
      throw std::out_of_range(
          "indices must be in [0, " + std::to_string(num_rows) + "), not " +
          std::to_string(indices[i]));
    }
  }
}

} // namespace

void QuantizedRows::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const mx::array words = row_contiguous(inputs[1], encoder);
  const mx::array scales = row_contiguous(inputs[2], encoder);
  const Matrix matrix{
      words.data<uint32_t>(),
      scales.data<void>(),
      row_contiguous(inputs[3], encoder).data<void>(),
      quantization_,
      words.shape(0),
      out.shape(-1)};
  encoder.dispatch([indices = row_contiguous(inputs[0], encoder).data<int32_t>(),
                    count = static_cast<int64_t>(inputs[0].size()),
                    type = scales.dtype(),
                    matrix,
                    out = out.data<float>()]() {
    check_indices(indices, count, matrix.num_rows);
    if (type == mx::float32) {
      unpack_rows<float>(matrix, indices, count, out);
    } else if (type == mx::float16) {
      unpack_rows<mx::float16_t>(matrix, indices, count, out);
    } else {
      unpack_rows<mx::bfloat16_t>(matrix, indices, count, out);
    }
  });
}

void QuantizedRows::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("QuantizedRows has no GPU kernel");
}

std::vector<mx::Shape> QuantizedRows::output_shapes(const std::vector<mx::array>& inputs) {
  mx::Shape shape = inputs[0].shape();
  shape.push_back(inputs[2].shape(1) * quantization_.group_size);
  return {shape};
}

bool QuantizedRows::is_equivalent(const mx::Primitive& other) const {
  return quantization_ == static_cast<const QuantizedRows&>(other).quantization_;
}

mx::array quantized_rows(
    const mx::array& indices,
    const mx::array& words,
    const mx::array& scales,
    const mx::array& biases,
    Quantization quantization,
    mx::Stream stream) {
  check_matrix(words, scales, biases, quantization, 2);
  if (indices.dtype() != mx::int32) {
    throw std::invalid_argument("indices must be int32");
  }
  mx::Shape shape = indices.shape();
  shape.push_back(scales.shape(1) * quantization.group_size);
  return mx::array(
      std::move(shape),
      mx::float32,
      std::make_shared<QuantizedRows>(stream, quantization),
      {indices, words, scales, biases});
}

} // namespace pomona
