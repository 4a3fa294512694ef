#include "cpu/layers/add_rms_norm.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/fast.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "cpu/threads/thread_pool.h"
#include "cpu/arrays/contiguous.h"
#include "cpu/kernels/table.h"
#include "cpu/arrays/runs.h"
#include "operators/pending.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: some microseconds of work.
constexpr int64_t kElements = 8192;

bool fits(const mx::array& x, const mx::array& weight) {
  const auto& terms = x.inputs();
  return x.ndim() >= 1 && x.size() > 0 && weight.ndim() == 1 &&
      weight.shape(0) == x.shape(-1) && !weight.is_tracer() && terms.size() == 2 &&
      std::ranges::all_of(terms, [&](const mx::array& term) {
        return term.shape() == x.shape() && term.dtype() == x.dtype();
      });
}

void add(const float* a, const float* b, float* out, int64_t count) {
  // `out` may be either of them.
#pragma GCC ivdep
  for (int64_t i = 0; i < count; i++) {
    out[i] = a[i] + b[i];
  }
}

} // namespace

void AddRMSNorm::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  // Memory of a term that nobody else holds: the residual in a layer's middle, else the block's.
  const bool is_first_free = inputs[0].flags().row_contiguous && inputs[0].is_donatable();
  share_or_allocate(inputs[is_first_free ? 0 : 1], outputs[0]);
  outputs[1].set_data(mx::allocator::malloc(outputs[1].nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const int64_t dim = inputs[2].size();
  encoder.dispatch(
      [a = runs_of(inputs[0], dim, encoder),
       b = runs_of(inputs[1], dim, encoder),
       weight = row_contiguous(inputs[2], encoder).data<float>(),
       sum = outputs[0].data<float>(),
       normed = outputs[1].data<float>(),
       epsilon = epsilon_,
       dim]() {
        const auto* kernels = &cpu::kernels_in_use();
        const int64_t each = std::max<int64_t>(1, kElements / dim);
        cpu::ThreadPool::shared().parallel_for((a.count + each - 1) / each, [&](int64_t turn) {
          const int64_t first = turn * each, last = std::min(a.count, first + each);
          for (int64_t row = first; row < last; row++) {
            add(a[row], b[row], sum + row * dim, dim);
          }
          kernels->rms_norm(
              sum + first * dim, weight, epsilon, normed + first * dim, last - first, dim);
        });
      });
}

void AddRMSNorm::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("AddRMSNorm has no GPU kernel");
}

std::vector<mx::Shape> AddRMSNorm::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape(), inputs[0].shape()};
}

bool AddRMSNorm::is_equivalent(const mx::Primitive& other) const {
  return epsilon_ == static_cast<const AddRMSNorm&>(other).epsilon_;
}

mx::array rms_norm_of_sum(
    mx::array& x, const mx::array& weight, float epsilon, mx::Stream stream) {
  if (x.dtype() != mx::float32 || weight.dtype() != mx::float32) {
    return mx::fast::rms_norm(x, weight, epsilon, stream);
  }
  if (!is_pending(x, "Add", stream) || !fits(x, weight)) {
    return rms_norm(x, weight, epsilon, stream);
  }
  auto outputs = mx::array::make_arrays(
      {x.shape(), x.shape()},
      {x.dtype(), x.dtype()},
      std::make_shared<AddRMSNorm>(stream, epsilon),
      {x.inputs()[0], x.inputs()[1], weight});
  x.overwrite_descriptor(outputs[0]);
  return outputs[1];
}

} // namespace pomona
