// The primitives' evaluation by Metal: encodes dispatches, while inputs may still be under way.
//
// The memory that kernels work in is an output of the primitive, because MLX keeps those until the
// GPU is done with them and tracks who uses them. The int32 arrays' contents are not checked: they
// are not known yet.
#include <mlx/allocator.h>

#include "common/bindings.h"
#include "metal/attention.h"
#include "metal/pipelines.h"
#include "metal/rows.h"
#include "operators/operators.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;
using metal::Packing;

void check_caches(const mx::array& k_cache, const mx::array& v_cache) {
  check_cache_strides("k_cache", k_cache);
  check_cache_strides("v_cache", v_cache);
}

struct Encoding {
  mx::metal::Device& device;
  mx::metal::CommandEncoder& encoder;

  explicit Encoding(const mx::Stream& stream)
      : device(mx::metal::device(stream.device)),
        encoder(mx::metal::get_command_encoder(stream)) {}

  Rows rows(Packing& packing, const mx::array& in) {
    return packing.rows(in, device, encoder);
  }
};

} // namespace

// Outputs: k_cache, v_cache, packed rows.
void ReshapeAndCache::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_caches(inputs[2], inputs[3]);
  outputs[0].copy_shared_buffer(inputs[2]);
  outputs[1].copy_shared_buffer(inputs[3]);
  Encoding metal(stream());
  Packing packing(outputs[2], {inputs[0], inputs[1]});
  NewTokens tokens{
      metal.rows(packing, inputs[0]),
      metal.rows(packing, inputs[1]),
      inputs[4],
      outputs[0],
      outputs[1]};
  metal::encode_scatter(metal.device, metal.encoder, tokens);
}

// Outputs: out, packed rows, partial states.
void PagedAttention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_caches(inputs[1], inputs[2]);
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  Encoding metal(stream());
  Packing packing(outputs[1], {inputs[0]});
  metal::encode_attention(
      metal.device,
      metal.encoder,
      options_,
      {metal.rows(packing, inputs[0]),
       std::nullopt,
       inputs[1],
       inputs[2],
       inputs[3],
       inputs[4],
       inputs[5],
       inputs.size() > 6 ? &inputs[6] : nullptr,
       outputs[0],
       outputs[2]});
}

// Outputs: out, k_cache, v_cache, packed rows, partial states.
void ScatterPagedAttention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_caches(inputs[3], inputs[4]);
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  outputs[1].copy_shared_buffer(inputs[3]);
  outputs[2].copy_shared_buffer(inputs[4]);
  Encoding metal(stream());
  Packing packing(outputs[3], {inputs[0], inputs[1], inputs[2]});
  auto q = metal.rows(packing, inputs[0]);
  NewTokens tokens{
      metal.rows(packing, inputs[1]),
      metal.rows(packing, inputs[2]),
      inputs[5],
      outputs[1],
      outputs[2]};
  metal::encode_attention(
      metal.device,
      metal.encoder,
      options_,
      {q,
       tokens,
       inputs[3],
       inputs[4],
       inputs[6],
       inputs[7],
       inputs[8],
       inputs.size() > 9 ? &inputs[9] : nullptr,
       outputs[0],
       outputs[4]});
}

} // namespace pomona
