// What operators that GPUs alone have do on a CPU.
#include <stdexcept>

#include "operators/rotate_heads.h"

namespace pomona {

void RotateHeads::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("RotateHeads needs a stream of the GPU");
}

} // namespace pomona
