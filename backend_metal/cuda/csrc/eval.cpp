// The primitives' evaluation by CUDA: adds kernels to MLX's graph of commands, while inputs may
// still be under way. The int32 arrays' contents are not checked: they are not known yet.
#include "cuda/csrc/attention.h"
#include "cuda/csrc/memory.h"
#include "operators/operators.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;

void check_caches(const mx::array& k_cache, const mx::array& v_cache) {
  check_cache_strides("k_cache", k_cache);
  check_cache_strides("v_cache", v_cache);
}

const mx::array* sinks_at(const Arrays& inputs, size_t index) {
  return inputs.size() > index ? &inputs[index] : nullptr;
}

// Of as many elements as the plan asks for, which it gets then.
mx::array no_partials() {
  return mx::array({0}, mx::float32, nullptr, {});
}

} // namespace

// Outputs: k_cache, v_cache.
void ReshapeAndCache::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_caches(inputs[2], inputs[3]);
  auto& encoder = mx::cu::get_command_encoder(stream());
  outputs[0].copy_shared_buffer(inputs[2]);
  outputs[1].copy_shared_buffer(inputs[3]);
  cuda::encode_scatter(
      encoder,
      {cuda::rows_of(encoder, inputs[0]),
       cuda::rows_of(encoder, inputs[1]),
       inputs[4],
       outputs[0],
       outputs[1]});
}

// Output: out.
void PagedAttention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_caches(inputs[1], inputs[2]);
  auto& encoder = mx::cu::get_command_encoder(stream());
  cuda::allocate(outputs[0], encoder);
  auto partials = no_partials();
  cuda::encode_attention(
      stream(),
      options_,
      {cuda::rows_of(encoder, inputs[0]),
       std::nullopt,
       inputs[1],
       inputs[2],
       inputs[3],
       inputs[4],
       inputs[5],
       sinks_at(inputs, 6),
       outputs[0],
       partials});
}

// Outputs: out, k_cache, v_cache.
void ScatterPagedAttention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_caches(inputs[3], inputs[4]);
  auto& encoder = mx::cu::get_command_encoder(stream());
  cuda::allocate(outputs[0], encoder);
  outputs[1].copy_shared_buffer(inputs[3]);
  outputs[2].copy_shared_buffer(inputs[4]);
  auto partials = no_partials();
  NewTokens tokens{
      cuda::rows_of(encoder, inputs[1]),
      cuda::rows_of(encoder, inputs[2]),
      inputs[5],
      outputs[1],
      outputs[2]};
  cuda::encode_attention(
      stream(),
      options_,
      {cuda::rows_of(encoder, inputs[0]),
       tokens,
       inputs[3],
       inputs[4],
       inputs[6],
       inputs[7],
       inputs[8],
       sinks_at(inputs, 9),
       outputs[0],
       partials});
}

} // namespace pomona
