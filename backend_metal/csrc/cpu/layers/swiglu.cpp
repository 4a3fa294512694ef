#include "cpu/layers/swiglu.h"

#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <stdexcept>

#include "cpu/threads/thread_pool.h"
#include "cpu/arrays/contiguous.h"
#include "cpu/kernels/table.h"
#include "cpu/arrays/runs.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: a few microseconds, and what fits the first-level cache.
constexpr int64_t kElements = 4096;

} // namespace

void SwiGLU::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  share_or_allocate(inputs[0], out);
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const int64_t length = std::min(run_length(inputs[0]), run_length(inputs[1]));
  encoder.dispatch([gate = runs_of(inputs[0], length, encoder),
                    up = runs_of(inputs[1], length, encoder),
                    out = out.data<float>()]() {
    const auto* kernels = &cpu::kernels_in_use();
    const int64_t length = gate.length, turns = (length + kElements - 1) / kElements;
    cpu::ThreadPool::shared().parallel_for(gate.count * turns, [&](int64_t turn) {
      const int64_t run = turn / turns, first = turn % turns * kElements;
      kernels->swiglu(
          gate[run] + first,
          up[run] + first,
          out + run * length + first,
          std::min(kElements, length - first));
    });
  });
}

void SwiGLU::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("SwiGLU has no GPU kernel");
}

std::vector<mx::Shape> SwiGLU::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

bool SwiGLU::is_equivalent(const mx::Primitive&) const {
  return true;
}

mx::array swiglu(const mx::array& gate, const mx::array& up, mx::Stream stream) {
  if (gate.dtype() != mx::float32 || up.dtype() != mx::float32) {
    throw std::invalid_argument("gate and up must be float32");
  }
  if (gate.shape() != up.shape()) {
    throw std::invalid_argument("gate and up must have one shape");
  }
  return mx::array(
      gate.shape(),
      mx::float32,
      std::make_shared<SwiGLU>(stream),
      {gate, up});
}

} // namespace pomona
