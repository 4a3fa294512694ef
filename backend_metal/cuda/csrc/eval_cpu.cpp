// Arrays on the CPU are the other extension's: this one has kernels for a GPU alone.
#include <stdexcept>

#include "cuda/csrc/add_rms_norm.h"
#include "cuda/csrc/few_rows_product.h"
#include "cuda/csrc/fill_in_tokens.h"
#include "cuda/csrc/quantized_product.h"
#include "cuda/csrc/silu_product.h"
#include "cuda/csrc/upload.h"
#include "operators/draw_tokens.h"
#include "operators/primitives.h"
#include "operators/recurrent.h"
#include "operators/rotate_heads.h"

namespace pomona {

namespace {

[[noreturn]] void refuse(const mx::Primitive& primitive) {
  throw std::runtime_error(std::string(primitive.name()) + " on CUDA needs a stream of the GPU");
}

} // namespace

void ReshapeAndCache::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void PagedAttention::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void ScatterPagedAttention::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void CausalConv::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void LinearAttention::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void DrawTokens::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void RotateHeads::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void cuda::FewRowsProduct::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void cuda::QuantizedProduct::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void cuda::AddRmsNorm::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

void cuda::SiluProduct::eval_cpu(const std::vector<mx::array>&, mx::array&) {
  refuse(*this);
}

void cuda::FillInTokens::eval_cpu(const std::vector<mx::array>&, mx::array&) {
  refuse(*this);
}

void cuda::Upload::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  refuse(*this);
}

} // namespace pomona
