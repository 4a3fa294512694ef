#include "cuda/csrc/copy_staged.h"

#include <algorithm>

#include "cuda/csrc/errors.h"
#include "cuda/csrc/launch.h"
#include "cuda/kernels/copy_staged_buffers.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// What a kernel reads from the host itself. An engine for copies has more bytes a second, but between
// kernels each copy costs 7 to 9 us more than a kernel does.
constexpr size_t kMostBytesOfKernel = 64 * 1024;

void add_copy(
    mx::cu::CommandEncoder& encoder, CopyStagedParameters parameters, CopyStagedBuffers buffers) {
  int words = std::max(parameters.num_words, parameters.num_drawn);
  if (words == 0) {
    return;
  }
  GpuGrid grid{ceil_div(words, kStagedThreads), 1, 1, kStagedThreads, 0};
  add_kernel(
      encoder,
      {"copy_staged.cu", "copy_staged", "unsigned", {}, "CopyStaged", grid.threads},
      {},
      grid,
      parameters,
      buffers);
}

void copy(
    mx::cu::CommandEncoder& encoder,
    Staged& staged,
    const mx::array& to,
    CopyStagedParameters parameters,
    CopyStagedBuffers buffers) {
  bool by_kernel = staged.num_bytes() <= kMostBytesOfKernel;
  if (by_kernel) {
    parameters.num_words = static_cast<int>(staged.num_bytes() / sizeof(unsigned));
    buffers.staged = static_cast<const unsigned*>(staged.memory());
    buffers.to = pointer<unsigned>(to);
  }
  encoder.set_output_array(to);
  add_copy(encoder, parameters, buffers);
  if (!by_kernel) {
    auto address = reinterpret_cast<CUdeviceptr>(pointer(to));
    check(
        cuMemcpyHtoDAsync(address, staged.memory(), staged.num_bytes(), stream_of(encoder)),
        "cuMemcpyHtoDAsync");
  }
  staged.end_reading(stream_of(encoder));
}

} // namespace

void copy_staged(mx::cu::CommandEncoder& encoder, Staged& staged, const mx::array& to) {
  copy(encoder, staged, to, {}, {});
}

void copy_staged(
    mx::cu::CommandEncoder& encoder,
    Staged& staged,
    const mx::array& to,
    const mx::array& newest,
    const mx::array& drawn) {
  CopyStagedParameters parameters{};
  parameters.num_drawn = static_cast<int>(std::min(newest.size(), drawn.size()));
  encoder.set_input_array(newest);
  encoder.set_output_array(drawn);
  copy(
      encoder,
      staged,
      to,
      parameters,
      {nullptr, nullptr, pointer<unsigned>(newest), pointer<unsigned>(drawn)});
}

} // namespace pomona::cuda
