// The shipped primitives, evaluated on the CPU device by the very code that encodes for Metal.
#include "evaluation.h"
#include "operators/draw_tokens.h"
#include "operators/primitives.h"
#include "operators/recurrent.h"
#include "operators/rotate_heads.h"

namespace pomona {

using Arrays = std::vector<mx::array>;

void ReshapeAndCache::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

void PagedAttention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

void ScatterPagedAttention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

void CausalConv::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

void LinearAttention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

void DrawTokens::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

void RotateHeads::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  metal_on_cpu::evaluate(*this, inputs, outputs);
}

} // namespace pomona
