// The primitives' evaluation by Metal: encodes dispatches, while inputs may still be under way.
//
// The memory that kernels work in is an output of the primitive, because MLX keeps those until the
// GPU is done with them and tracks who uses them. The int32 arrays' contents are not checked: they
// are not known yet.
#include <mlx/allocator.h>

#include "bindings.h"
#include "metal/attention.h"
#include "metal/pipelines.h"
#include "operators/operators.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;
using metal::NewTokens;
using metal::Packing;

constexpr int kCopyThreads = 256;

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

  metal::Rows rows(Packing& packing, const mx::array& in) {
    return packing.rows(in, device, encoder);
  }
};

// All of the blocks that `blocks` names, to or from `staged`.
void copy_blocks(
    Encoding& metal,
    const char* function,
    mx::array& cache,
    const mx::array& blocks,
    mx::array& staged,
    bool reads_cache) {
  CopyBlocksParameters p{
      metal::cache_strides(cache), blocks.strides(0), cache.shape(2), cache.shape(3)};
  metal::Options options;
  options.block_size = cache.shape(1);
  options.aligned =
      metal::is_aligned(cache) && cache.shape(3) * cache.itemsize() % 16 == 0;
  metal::Kernel kernel{"scatter.metal", function, {metal::metal_bits(cache.dtype())}};
  auto& encoder = metal.encoder;
  encoder.set_compute_pipeline_state(metal::pipeline(metal.device, kernel, options));
  encoder.set_bytes(p, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(blocks, POMONA_BUFFER_BLOCKS);
  if (reads_cache) {
    encoder.set_input_array(cache, POMONA_BUFFER_CACHE);
    encoder.set_output_array(staged, POMONA_BUFFER_STAGED);
  } else {
    encoder.set_input_array(staged, POMONA_BUFFER_STAGED);
    encoder.set_output_array(cache, POMONA_BUFFER_CACHE);
  }
  encoder.dispatch_threadgroups(
      MTL::Size(blocks.shape(0), cache.shape(1), 1), MTL::Size(kCopyThreads, 1, 1));
}

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

// Outputs: cache, staged blocks. Every source is read before any destination is written.
void CopyBlocks::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  check_cache_strides("cache", inputs[0]);
  auto& cache = outputs[0];
  cache.copy_shared_buffer(inputs[0]);
  int64_t block_elements = int64_t(cache.shape(1)) * cache.shape(2) * cache.shape(3);
  metal::allocate(outputs[1], inputs[1].shape(0) * block_elements);
  if (inputs[1].shape(0) == 0) {
    return;
  }
  Encoding metal(stream());
  copy_blocks(metal, "stage_blocks", cache, inputs[1], outputs[1], true);
  copy_blocks(metal, "place_blocks", cache, inputs[2], outputs[1], false);
}

} // namespace pomona
