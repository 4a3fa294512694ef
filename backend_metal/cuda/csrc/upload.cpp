#include "cuda/csrc/upload.h"

#include <mlx/backend/cuda/device.h>

#include "cuda/csrc/copy_staged.h"
#include "cuda/csrc/memory.h"

namespace pomona::cuda {

void Upload::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  auto& out = outputs[0];
  allocate(out, encoder);
  if (out.size() > 0) {
    copy_staged(encoder, *staged_, out);
  }
}

mx::array upload(
    std::span<const std::byte> bytes, mx::Shape shape, mx::Dtype dtype, mx::Stream stream) {
  mx::cu::device(stream.device).make_current();
  return mx::array(
      std::move(shape), dtype, std::make_shared<Upload>(stream, Staged::copy_of(bytes)), {});
}

} // namespace pomona::cuda
