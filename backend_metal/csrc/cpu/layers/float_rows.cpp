#include "cpu/layers/float_rows.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <stdexcept>

#include "cpu/attention.h"
#include "cpu/kernels/table.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: some microseconds of work.
constexpr int64_t kElements = 8192;

void share_or_allocate(const mx::array& in, mx::array& out) {
  if (in.is_donatable()) {
    out.copy_shared_buffer(in);
  } else {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
}

// Calls body(first, last) over parts of [0, rows) on all threads.
template <typename Body>
void for_rows(int64_t rows, int64_t dim, Body body) {
  int64_t each = std::max<int64_t>(1, kElements / std::max<int64_t>(1, dim));
  int turns = static_cast<int>((rows + each - 1) / each);
  cpu::ThreadPool::shared().parallel_for(turns, [&](int turn, int) {
    body(turn * each, std::min(rows, (turn + 1) * each));
  });
}

void check_float32(const char* name, const mx::array& x) {
  if (x.dtype() != mx::float32) {
    throw std::invalid_argument(std::string(name) + " must be float32");
  }
}

} // namespace

void FloatRows::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error(std::string(name()) + " has no GPU kernel");
}

std::vector<mx::Shape> FloatRows::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

void RMSNorm::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  share_or_allocate(inputs[0], out);
  int64_t dim = inputs[1].size(), rows = dim ? out.size() / dim : 0;
  mx::cpu::get_command_encoder(stream()).dispatch([x = inputs[0].data<float>(),
                                                   weight = inputs[1].data<float>(),
                                                   out = out.data<float>(),
                                                   epsilon = epsilon_,
                                                   rows,
                                                   dim]() {
    const auto* kernels = cpu::find_kernels(cpu::instruction_set());
    for_rows(rows, dim, [&](int64_t first, int64_t last) {
      kernels->rms_norm(x + first * dim, weight, epsilon, out + first * dim, last - first, dim);
    });
  });
}

bool RMSNorm::is_equivalent(const mx::Primitive& other) const {
  return epsilon_ == static_cast<const RMSNorm&>(other).epsilon_;
}

void RotaryEmbedding::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  share_or_allocate(inputs[0], out);
  int heads = out.shape(1), head_dim = out.shape(3), half = inputs[2].shape(0);
  mx::cpu::get_command_encoder(stream()).dispatch([x = inputs[0].data<float>(),
                                                   positions = inputs[1].data<int32_t>(),
                                                   frequencies = inputs[2].data<float>(),
                                                   out = out.data<float>(),
                                                   scale = scale_,
                                                   tokens = int64_t(out.shape(0)),
                                                   heads,
                                                   head_dim,
                                                   half]() {
    const auto* kernels = cpu::find_kernels(cpu::instruction_set());
    int64_t dim = int64_t(heads) * head_dim;
    for_rows(tokens, dim, [&](int64_t first, int64_t last) {
      std::vector<float> angles(2 * half);
      for (int64_t token = first; token < last; token++) {
        kernels->rotate(
            x + token * dim,
            out + token * dim,
            static_cast<float>(positions[token]) * scale,
            frequencies,
            half,
            heads,
            head_dim,
            angles.data());
      }
    });
  });
}

bool RotaryEmbedding::is_equivalent(const mx::Primitive& other) const {
  return scale_ == static_cast<const RotaryEmbedding&>(other).scale_;
}

mx::array rms_norm(const mx::array& x, const mx::array& weight, float epsilon, mx::Stream stream) {
  check_float32("x", x);
  check_float32("weight", weight);
  if (x.ndim() == 0 || weight.ndim() != 1 || weight.shape(0) != x.shape(-1)) {
    throw std::invalid_argument("weight must have as many elements as a row of x");
  }
  return mx::array(
      x.shape(),
      mx::float32,
      std::make_shared<RMSNorm>(stream, epsilon),
      {mx::contiguous(x, false, stream), mx::contiguous(weight, false, stream)});
}

mx::array rope(
    const mx::array& x,
    const mx::array& positions,
    const mx::array& frequencies,
    float scale,
    mx::Stream stream) {
  check_float32("x", x);
  check_float32("frequencies", frequencies);
  if (x.ndim() != 4 || x.shape(2) != 1) {
    throw std::invalid_argument("x must be [num_tokens, num_heads, 1, head_dim]");
  }
  if (positions.dtype() != mx::int32 || positions.shape() != mx::Shape{x.shape(0)}) {
    throw std::invalid_argument("positions must be int32 [num_tokens]");
  }
  if (frequencies.ndim() != 1 || 2 * frequencies.shape(0) > x.shape(3)) {
    throw std::invalid_argument("frequencies must be at most half of head_dim");
  }
  return mx::array(
      x.shape(),
      mx::float32,
      std::make_shared<RotaryEmbedding>(stream, scale),
      {mx::contiguous(x, false, stream),
       mx::contiguous(positions, false, stream),
       mx::contiguous(frequencies, false, stream)});
}

} // namespace pomona
