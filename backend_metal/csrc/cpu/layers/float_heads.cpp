#include "cpu/layers/float_heads.h"

#include <mlx/backend/cpu/encoder.h>
#include <mlx/fast.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "cpu/threads/thread_pool.h"
#include "cpu/arrays/contiguous.h"
#include "cpu/kernels/table.h"
#include "cpu/arrays/runs.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: some microseconds of work.
constexpr int64_t kElements = 8192;

// Queries, or keys.
struct Heads {
  Runs tokens;
  const float* weight; // null: no norm
  float* out;
  int num_heads;
};

Heads heads_of(
    const mx::array& in,
    const mx::array* weight,
    mx::array& out,
    mx::cpu::CommandEncoder& encoder) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  const int64_t length = int64_t(in.shape(1)) * in.shape(2);
  return {
      runs_of(in, length, encoder),
      weight ? row_contiguous(*weight, encoder).data<float>() : nullptr,
      out.data<float>(),
      in.shape(1)};
}

// Of a base, [half]: rounded as mx::fast::rope rounds them. At a position of thousands the last bit
// of one shows.
mx::array frequencies_of(int half, float base, mx::Stream stream) {
  static std::mutex mutex;
  // Never destroyed: what allocates arrays may go first.
  static auto& known = *new std::map<std::pair<int, float>, mx::array>;
  std::lock_guard lock(mutex);
  auto found = known.find({half, base});
  if (found == known.end()) {
    mx::array step(std::log(base) / half, mx::float32);
    mx::array made = mx::exp(
        mx::multiply(mx::arange(0, -half, -1, mx::float32, stream), step, stream), stream);
    made.eval();
    found = known.emplace(std::pair(half, base), std::move(made)).first;
  }
  return found->second;
}

mx::array by_mlx(
    const mx::array& heads,
    const mx::array& positions,
    const mx::array* weight,
    const std::optional<mx::array>& frequencies,
    const RotaryOptions& options,
    mx::Stream stream) {
  mx::array normed =
      weight ? mx::fast::rms_norm(heads, *weight, options.epsilon, stream) : heads;
  std::optional<float> base;
  if (!frequencies) {
    base = options.base;
  }
  mx::array rotated = mx::fast::rope(
      mx::expand_dims(normed, 2, stream),
      options.dims,
      options.traditional,
      base,
      options.scale,
      positions,
      frequencies,
      stream);
  return mx::squeeze(rotated, 2, stream);
}

} // namespace

void FloatHeads::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const bool has_norm = inputs.size() > 4;
  auto& encoder = mx::cpu::get_command_encoder(stream());
  encoder.dispatch([q = heads_of(inputs[0], has_norm ? &inputs[4] : nullptr, outputs[0], encoder),
                    k = heads_of(inputs[1], has_norm ? &inputs[5] : nullptr, outputs[1], encoder),
                    positions = row_contiguous(inputs[2], encoder).data<int32_t>(),
                    frequencies = row_contiguous(inputs[3], encoder).data<float>(),
                    num_tokens = int64_t(inputs[0].shape(0)),
                    head_dim = inputs[0].shape(2),
                    half = int(inputs[3].size()),
                    scale = scale_,
                    epsilon = epsilon_]() {
    const auto* kernels = &cpu::kernels_in_use();
    const int64_t each =
        std::max<int64_t>(1, kElements / std::max<int64_t>(1, q.tokens.length + k.tokens.length));
    cpu::ThreadPool::shared().parallel_for((num_tokens + each - 1) / each, [&](int64_t turn) {
      thread_local std::vector<float> angles;
      angles.resize(2 * half);
      for (int64_t token = turn * each; token < std::min(num_tokens, (turn + 1) * each); token++) {
        kernels->find_angles(
            static_cast<float>(positions[token]) * scale, frequencies, half, angles.data());
        for (const Heads& heads : {q, k}) {
          const float* in = heads.tokens[token];
          float* out = heads.out + token * heads.tokens.length;
          if (heads.weight) {
            kernels->rms_norm(in, heads.weight, epsilon, out, heads.num_heads, head_dim);
            in = out;
          }
          kernels->rotate(in, out, angles.data(), half, heads.num_heads, head_dim);
        }
      }
    });
  });
}

void FloatHeads::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("FloatHeads has no GPU kernel");
}

std::vector<mx::Shape> FloatHeads::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape(), inputs[1].shape()};
}

bool FloatHeads::is_equivalent(const mx::Primitive& other) const {
  const auto& heads = static_cast<const FloatHeads&>(other);
  return scale_ == heads.scale_ && epsilon_ == heads.epsilon_;
}

std::vector<mx::array> rotate_heads_on_cpu(
    const mx::array& q,
    const mx::array& k,
    const mx::array& positions,
    const std::optional<HeadWeights>& weights,
    const std::optional<mx::array>& frequencies,
    const RotaryOptions& options,
    mx::Stream stream) {
  if (q.dtype() != mx::float32 || options.traditional) {
    const mx::array* q_weight = weights ? &weights->q : nullptr;
    const mx::array* k_weight = weights ? &weights->k : nullptr;
    return {
        by_mlx(q, positions, q_weight, frequencies, options, stream),
        by_mlx(k, positions, k_weight, frequencies, options, stream)};
  }
  std::vector<mx::array> inputs{
      q,
      k,
      positions,
      frequencies ? mx::reciprocal(*frequencies, stream)
                  : frequencies_of(options.dims / 2, options.base, stream)};
  if (weights) {
    inputs.insert(inputs.end(), {weights->q, weights->k});
  }
  return mx::array::make_arrays(
      {q.shape(), k.shape()},
      {q.dtype(), k.dtype()},
      std::make_shared<FloatHeads>(stream, options.scale, options.epsilon),
      std::move(inputs));
}

} // namespace pomona
