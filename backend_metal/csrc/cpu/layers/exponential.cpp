#include "cpu/layers/exponential.h"

#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/threads/thread_pool.h"
#include "cpu/arrays/contiguous.h"
#include "cpu/kernels/table.h"
#include "cpu/arrays/runs.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: a few microseconds, and what fits the first-level cache.
constexpr int64_t kElements = 4096;
// Of which the kernel takes a multiple.
constexpr int64_t kWhole = 16;

void exponentials(const cpu::KernelTable& kernels, const float* in, float* out, int64_t count) {
  const int64_t whole = count / kWhole * kWhole, rest = count - whole;
  kernels.exp(in, out, whole);
  if (rest > 0) {
    float last[kWhole] = {};
    std::memcpy(last, in + whole, rest * sizeof(float));
    kernels.exp(last, last, kWhole);
    std::memcpy(out + whole, last, rest * sizeof(float));
  }
}

} // namespace

void Exponential::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  share_or_allocate(inputs[0], out);
  auto& encoder = mx::cpu::get_command_encoder(stream());
  encoder.dispatch([in = runs_of(inputs[0], run_length(inputs[0]), encoder),
                    out = out.data<float>()]() {
    const auto* kernels = &cpu::kernels_in_use();
    const int64_t length = in.length, turns = (length + kElements - 1) / kElements;
    cpu::ThreadPool::shared().parallel_for(in.count * turns, [&](int64_t turn) {
      const int64_t run = turn / turns, first = turn % turns * kElements;
      exponentials(
          *kernels,
          in[run] + first,
          out + run * length + first,
          std::min(kElements, length - first));
    });
  });
}

void Exponential::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("Exponential has no GPU kernel");
}

std::vector<mx::Shape> Exponential::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

bool Exponential::is_equivalent(const mx::Primitive&) const {
  return true;
}

mx::array exponential(const mx::array& x, mx::Stream stream) {
  if (x.dtype() != mx::float32) {
    throw std::invalid_argument("x must be float32");
  }
  return mx::array(x.shape(), mx::float32, std::make_shared<Exponential>(stream), {x});
}

} // namespace pomona
