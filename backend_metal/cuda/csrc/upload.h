// What the host has made, as an array of the GPU.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "cuda/csrc/staging.h"

namespace pomona::cuda {

namespace mx = mlx::core;

// No inputs; one output, of any shape, and of a dtype of 4 bytes.
class Upload : public mx::Primitive {
 public:
  Upload(mx::Stream stream, std::shared_ptr<Staged> staged)
      : mx::Primitive(stream), staged_(std::move(staged)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  DEFINE_NAME(Upload)

 private:
  std::shared_ptr<Staged> staged_;
};

// `bytes` are the array's in row-major order, and are copied before this returns.
mx::array upload(
    std::span<const std::byte> bytes, mx::Shape shape, mx::Dtype dtype, mx::Stream stream);

} // namespace pomona::cuda
