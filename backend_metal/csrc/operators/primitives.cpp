#include "operators/primitives.h"

#include <stdexcept>
#include <string>

namespace pomona {

namespace {

[[noreturn]] void refuse(const CachePrimitive& primitive, const std::string& what) {
  throw std::runtime_error(
      std::string(primitive.name()) + " writes a cache in place and has no " + what);
}

mx::Shape attention_shape(const mx::array& q, const mx::array& v_cache) {
  return {q.shape(0), q.shape(1), v_cache.shape(3)};
}

std::vector<mx::Shape> with_workspaces(
    std::vector<mx::Shape> shapes, int num_workspaces, mx::Stream stream) {
  if (is_metal(stream)) {
    shapes.insert(shapes.end(), num_workspaces, mx::Shape{0});
  }
  return shapes;
}

} // namespace

bool is_metal([[maybe_unused]] mx::Stream stream) {
#ifdef POMONA_METAL
  return stream.device == mx::Device::POMONA_GPU_DEVICE;
#else
  return false;
#endif
}

void CachePrimitive::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this, "GPU kernels in this build");
}

std::pair<std::vector<mx::array>, std::vector<int>> CachePrimitive::vmap(
    const std::vector<mx::array>&, const std::vector<int>&) {
  refuse(*this, "vmap: sequences are packed, not batched");
}

std::vector<mx::array> CachePrimitive::jvp(
    const std::vector<mx::array>&, const std::vector<mx::array>&, const std::vector<int>&) {
  refuse(*this, "jvp: it serves inference only");
}

std::vector<mx::array> CachePrimitive::vjp(
    const std::vector<mx::array>&,
    const std::vector<mx::array>&,
    const std::vector<int>&,
    const std::vector<mx::array>&) {
  refuse(*this, "vjp: it serves inference only");
}

std::vector<mx::Shape> ReshapeAndCache::output_shapes(const std::vector<mx::array>& inputs) {
  return with_workspaces({inputs[2].shape(), inputs[3].shape()}, kScatterWorkspaces, stream());
}

bool ReshapeAndCache::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> PagedAttention::output_shapes(const std::vector<mx::array>& inputs) {
  return with_workspaces(
      {attention_shape(inputs[0], inputs[2])}, kAttentionWorkspaces, stream());
}

bool PagedAttention::is_equivalent(const mx::Primitive& other) const {
  return options_ == static_cast<const PagedAttention&>(other).options_;
}

std::vector<mx::Shape> ScatterPagedAttention::output_shapes(const std::vector<mx::array>& inputs) {
  return with_workspaces(
      {attention_shape(inputs[0], inputs[4]), inputs[3].shape(), inputs[4].shape()},
      kAttentionWorkspaces,
      stream());
}

bool ScatterPagedAttention::is_equivalent(const mx::Primitive& other) const {
  return options_ == static_cast<const ScatterPagedAttention&>(other).options_;
}

} // namespace pomona
