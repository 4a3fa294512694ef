#include "operators/silu_product.h"

#include <memory>
#include <stdexcept>

namespace pomona {

std::vector<mx::Shape> SiluProduct::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

bool SiluProduct::is_equivalent(const mx::Primitive&) const {
  return true;
}

mx::array silu_product(const mx::array& gate, const mx::array& up, mx::Stream stream) {
  auto dtype = gate.dtype();
  if (gate.shape() != up.shape() || dtype != up.dtype()) {
    throw std::invalid_argument("gate and up must have one shape and dtype");
  }
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    throw std::invalid_argument("gate and up must be float32, float16 or bfloat16");
  }
  if (gate.ndim() == 0) {
    throw std::invalid_argument("gate and up must have a dimension");
  }
  if (gate.ndim() > 3) {
    // As of experts. These are views, of the halves of one product as well.
    auto rows = [&](const mx::array& in) { return mx::flatten(in, 0, -2, stream); };
    return mx::reshape(silu_product(rows(gate), rows(up), stream), gate.shape(), stream);
  }
  return mx::array(gate.shape(), dtype, std::make_shared<SiluProduct>(stream), {gate, up});
}

} // namespace pomona
