#include "operators/rotate_heads.h"

#include <memory>
#include <utility>

namespace pomona {

std::vector<mx::Shape> RotateHeads::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape(), inputs[1].shape()};
}

bool RotateHeads::is_equivalent(const mx::Primitive& other) const {
  return options_ == static_cast<const RotateHeads&>(other).options_;
}

std::vector<mx::array> rotate_heads(
    const mx::array& q,
    const mx::array& k,
    const mx::array& positions,
    const std::optional<HeadWeights>& weights,
    const std::optional<mx::array>& frequencies,
    const RotaryOptions& options,
    mx::Stream stream) {
  std::vector<mx::array> inputs{q, k, positions};
  if (weights) {
    inputs.insert(inputs.end(), {weights->q, weights->k});
  }
  if (frequencies) {
    inputs.push_back(*frequencies);
  }
  return mx::array::make_arrays(
      {q.shape(), k.shape()},
      {q.dtype(), k.dtype()},
      std::make_shared<RotateHeads>(stream, options),
      std::move(inputs));
}

} // namespace pomona
