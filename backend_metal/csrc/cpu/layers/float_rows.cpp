#include "cpu/layers/float_rows.h"

#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <stdexcept>

#include "cpu/threads/thread_pool.h"
#include "cpu/arrays/contiguous.h"
#include "cpu/kernels/table.h"
#include "cpu/arrays/runs.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: some microseconds of work.
constexpr int64_t kElements = 8192;

// Calls body(run) for each of them, on all threads.
template <typename Body>
void for_runs(const Runs& runs, Body body) {
  const int64_t each = std::max<int64_t>(1, kElements / std::max<int64_t>(1, runs.length));
  cpu::ThreadPool::shared().parallel_for((runs.count + each - 1) / each, [&](int64_t turn) {
    for (int64_t run = turn * each; run < std::min(runs.count, (turn + 1) * each); run++) {
      body(run);
    }
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
  const int64_t dim = inputs[1].size();
  // Rows of one token lie together, where tokens don't.
  int64_t length = inputs[0].flags().row_contiguous ? dim : run_length(inputs[0]);
  length = dim && length % dim == 0 ? length : dim;
  auto& encoder = mx::cpu::get_command_encoder(stream());
  encoder.dispatch([x = runs_of(inputs[0], length, encoder),
                    weight = row_contiguous(inputs[1], encoder).data<float>(),
                    out = out.data<float>(),
                    epsilon = epsilon_,
                    dim]() {
    const auto* kernels = &cpu::kernels_in_use();
    for_runs(x, [&](int64_t run) {
      kernels->rms_norm(x[run], weight, epsilon, out + run * x.length, x.length / dim, dim);
    });
  });
}

bool RMSNorm::is_equivalent(const mx::Primitive& other) const {
  return epsilon_ == static_cast<const RMSNorm&>(other).epsilon_;
}

void RotaryEmbedding::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  share_or_allocate(inputs[0], out);
  int heads = out.shape(1), head_dim = out.shape(3), half = inputs[2].shape(0);
  auto& encoder = mx::cpu::get_command_encoder(stream());
  encoder.dispatch([x = runs_of(inputs[0], int64_t(heads) * head_dim, encoder),
                    positions = row_contiguous(inputs[1], encoder).data<int32_t>(),
                    frequencies = row_contiguous(inputs[2], encoder).data<float>(),
                    out = out.data<float>(),
                    scale = scale_,
                    heads,
                    head_dim,
                    half]() {
    const auto* kernels = &cpu::kernels_in_use();
    for_runs(x, [&](int64_t token) {
      thread_local std::vector<float> angles;
      angles.resize(2 * half);
      kernels->find_angles(
          static_cast<float>(positions[token]) * scale, frequencies, half, angles.data());
      kernels->rotate(
          x[token], out + token * x.length, angles.data(), half, heads, head_dim);
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
      {x, weight});
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
      {x, positions, frequencies});
}

} // namespace pomona
