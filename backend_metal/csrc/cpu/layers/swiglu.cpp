#include "cpu/layers/swiglu.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <stdexcept>

#include "cpu/attention.h"
#include "cpu/kernels/table.h"

namespace pomona {

namespace {

// Elements of one turn of a thread: a few microseconds, and what fits the first-level cache.
constexpr int64_t kElements = 4096;

} // namespace

void SwiGLU::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  const auto& gate = inputs[0];
  if (gate.is_donatable()) {
    out.copy_shared_buffer(gate);
  } else {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
  auto& encoder = mx::cpu::get_command_encoder(stream());
  encoder.dispatch([gate = gate.data<float>(),
                    up = inputs[1].data<float>(),
                    out = out.data<float>(),
                    size = static_cast<int64_t>(out.size())]() {
    const auto* kernels = cpu::find_kernels(cpu::instruction_set());
    int turns = static_cast<int>((size + kElements - 1) / kElements);
    cpu::ThreadPool::shared().parallel_for(turns, [&](int turn, int) {
      int64_t first = turn * kElements;
      kernels->swiglu(
          gate + first, up + first, out + first, std::min(kElements, size - first));
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
      {mx::contiguous(gate, false, stream), mx::contiguous(up, false, stream)});
}

} // namespace pomona
