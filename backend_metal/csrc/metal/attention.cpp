#include "metal/attention.h"

#include "bindings.h"
#include "gpu/launch_plan.h"
#include "metal/device_limits.h"
#include "metal/pipelines.h"

namespace pomona::metal {

namespace {

constexpr int kScatterThreads = 256;

AttentionShape shape_of(const AttentionOptions& options, const AttentionArrays& a) {
  return {
      a.out.shape(1),
      a.k_cache.shape(2),
      a.k_cache.shape(3),
      a.v_cache.shape(3),
      options.window};
}

GpuBatch batch_of(const AttentionArrays& a) {
  int64_t context = int64_t(a.block_tables.shape(1)) * a.k_cache.shape(1);
  return {
      a.out.shape(0),
      a.block_tables.shape(0),
      static_cast<int>(std::min<int64_t>(context, INT32_MAX)),
      static_cast<int>(a.out.itemsize())};
}

bool are_aligned(const AttentionArrays& a) {
  return is_aligned(a.k_cache) && is_aligned(a.v_cache) &&
      (!a.new_tokens || (is_aligned(a.new_tokens->k) && is_aligned(a.new_tokens->v)));
}

bool values_are_in_keys(const AttentionArrays& a) {
  return a.v_cache.shape(3) <= a.k_cache.shape(3) && is_prefix(a.k_cache, a.v_cache) &&
      (!a.new_tokens || is_prefix(a.new_tokens->k, a.new_tokens->v));
}

Options pipeline_options(const AttentionOptions& options, const AttentionArrays& a) {
  Options o;
  o.block_size = a.k_cache.shape(1);
  o.has_window = options.window > 0;
  o.has_softcap = options.softcap > 0.0f;
  o.has_sinks = a.sinks != nullptr;
  o.has_new_tokens = a.new_tokens.has_value();
  o.aligned = are_aligned(a);
  return o;
}

AttentionParameters parameters_of(const AttentionOptions& options, const AttentionArrays& a) {
  AttentionParameters p{};
  p.q = a.q.strides;
  if (a.new_tokens) {
    p.k = a.new_tokens->k.strides;
    p.v = a.new_tokens->v.strides;
    p.slot_mapping_stride = a.new_tokens->slot_mapping.strides(0);
  }
  p.k_cache = cache_strides(a.k_cache);
  p.v_cache = cache_strides(a.v_cache);
  p.block_table_row = a.block_tables.strides(0);
  p.block_table_entry = a.block_tables.strides(1);
  p.seq_lens_stride = a.seq_lens.strides(0);
  p.cu_seqlens_stride = a.cu_seqlens_q.strides(0);
  p.sinks_stride = a.sinks ? a.sinks->strides(0) : 0;
  p.num_seqs = a.block_tables.shape(0);
  p.num_q_heads = a.out.shape(1);
  p.num_kv_heads = a.k_cache.shape(2);
  p.group = p.num_q_heads / p.num_kv_heads;
  p.window = options.window;
  p.scale = options.scale;
  p.softcap = options.softcap;
  return p;
}

// `plan` is that of decode or of prefill.
template <typename Plan>
AttentionParameters with_splits(AttentionParameters p, const Plan& plan) {
  p.keys_per_split = plan.keys_per_split;
  p.max_splits = plan.max_splits;
  p.num_splits = plan.num_splits;
  return p;
}

// Everything that decode and prefill read, and `out`.
void bind_attention(
    mx::metal::CommandEncoder& encoder,
    const AttentionParameters& parameters,
    const AttentionArrays& a) {
  encoder.set_bytes(parameters, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(a.q.array, POMONA_BUFFER_Q, a.q.offset);
  if (a.new_tokens) {
    const auto& tokens = *a.new_tokens;
    encoder.set_input_array(tokens.k.array, POMONA_BUFFER_K, tokens.k.offset);
    encoder.set_input_array(tokens.v.array, POMONA_BUFFER_V, tokens.v.offset);
    encoder.set_input_array(tokens.slot_mapping, POMONA_BUFFER_SLOT_MAPPING);
  }
  encoder.set_input_array(a.k_cache, POMONA_BUFFER_K_CACHE);
  encoder.set_input_array(a.v_cache, POMONA_BUFFER_V_CACHE);
  encoder.set_input_array(a.block_tables, POMONA_BUFFER_BLOCK_TABLES);
  encoder.set_input_array(a.seq_lens, POMONA_BUFFER_SEQ_LENS);
  encoder.set_input_array(a.cu_seqlens_q, POMONA_BUFFER_CU_SEQLENS_Q);
  if (a.sinks) {
    encoder.set_input_array(*a.sinks, POMONA_BUFFER_SINKS);
  }
  encoder.set_output_array(a.out, POMONA_BUFFER_OUT);
}

void dispatch(mx::metal::CommandEncoder& encoder, const GpuGrid& grid) {
  if (grid.threadgroup_memory_bytes > 0) {
    encoder.set_threadgroup_memory_length(grid.threadgroup_memory_bytes, 0);
  }
  encoder.dispatch_threadgroups(
      MTL::Size(grid.x, grid.y, grid.z), MTL::Size(grid.threads, 1, 1));
}

// Folds the partial states at `offset` bytes of a.partials. `common` are the options of attention.
void encode_reduce(
    mx::metal::Device& device,
    mx::metal::CommandEncoder& encoder,
    const Kernel& kernel,
    const Options& common,
    const AttentionParameters& parameters,
    const AttentionArrays& a,
    int64_t offset,
    const GpuGrid& grid) {
  Options options;
  options.block_size = common.block_size;
  options.has_window = common.has_window;
  options.has_sinks = common.has_sinks;
  options.has_partials = true;
  encoder.set_compute_pipeline_state(pipeline(device, kernel, options));
  encoder.set_bytes(parameters, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(a.seq_lens, POMONA_BUFFER_SEQ_LENS);
  encoder.set_input_array(a.cu_seqlens_q, POMONA_BUFFER_CU_SEQLENS_Q);
  if (a.sinks) {
    encoder.set_input_array(*a.sinks, POMONA_BUFFER_SINKS);
  }
  encoder.set_input_array(a.partials, POMONA_BUFFER_PARTIALS, offset);
  encoder.set_output_array(a.out, POMONA_BUFFER_OUT);
  dispatch(encoder, grid);
}

} // namespace

void encode_attention(
    mx::metal::Device& device,
    mx::metal::CommandEncoder& encoder,
    const AttentionOptions& options,
    const AttentionArrays& a) {
  auto shape = shape_of(options, a);
  auto plan = plan_gpu_launch(device_limits(device), shape, batch_of(a));
  auto parameters = parameters_of(options, a);
  parameters.max_split_rows = plan.prefill.max_split_rows;
  auto decode_parameters = with_splits(parameters, plan.decode);
  auto prefill_parameters = with_splits(parameters, plan.prefill);
  auto common = pipeline_options(options, a);
  auto type = metal_type(a.out.dtype());
  auto dim = std::to_string(shape.head_dim), dim_v = std::to_string(shape.head_dim_v);
  // Decode's partial states, then prefill's.
  allocate(a.partials, plan.decode.num_partials + plan.prefill.num_partials);
  int64_t prefill_partials = plan.decode.num_partials * int64_t(sizeof(float));
  if (a.new_tokens) {
    // MLX does not look for earlier readers of what a concurrent dispatch writes.
    encoder.barrier();
  }
  {
    // Attention reads this step's tokens where scatter reads them, and nothing that scatter writes.
    auto concurrent = encoder.start_concurrent();
    if (!plan.decode.grid.empty()) {
      Kernel kernel{
          "decode.metal", "decode", {type, dim, dim_v, std::to_string(plan.decode.row_tiles)}};
      auto decode_options = common;
      decode_options.has_partials = plan.decode.num_partials > 0;
      encoder.set_compute_pipeline_state(pipeline(device, kernel, decode_options));
      bind_attention(encoder, decode_parameters, a);
      if (decode_options.has_partials) {
        encoder.set_output_array(a.partials, POMONA_BUFFER_PARTIALS);
      }
      dispatch(encoder, plan.decode.grid);
    }
    if (!plan.prefill.grid.empty()) {
      auto prefill_options = common;
      prefill_options.has_partials = plan.prefill.num_partials > 0;
      prefill_options.values_in_keys = values_are_in_keys(a);
      Kernel kernel{"prefill.metal", "prefill", {type, dim, dim_v}};
      encoder.set_compute_pipeline_state(pipeline(device, kernel, prefill_options));
      bind_attention(encoder, prefill_parameters, a);
      if (prefill_options.has_partials) {
        encoder.set_output_array(a.partials, POMONA_BUFFER_PARTIALS, prefill_partials);
      }
      dispatch(encoder, plan.prefill.grid);
    }
    if (a.new_tokens) {
      encode_scatter(device, encoder, *a.new_tokens);
    }
  }
  // The rows of one are not those of the other.
  auto concurrent = encoder.start_concurrent();
  if (!plan.reduce.empty()) {
    Kernel kernel{"reduce.metal", "reduce", {type, dim_v}};
    encode_reduce(device, encoder, kernel, common, decode_parameters, a, 0, plan.reduce);
  }
  if (!plan.prefill.reduce.empty()) {
    Kernel kernel{"prefill_reduce.metal", "prefill_reduce", {type, dim, dim_v}};
    encode_reduce(
        device,
        encoder,
        kernel,
        common,
        prefill_parameters,
        a,
        prefill_partials,
        plan.prefill.reduce);
  }
}

void encode_scatter(
    mx::metal::Device& device, mx::metal::CommandEncoder& encoder, const NewTokens& tokens) {
  int num_tokens = tokens.slot_mapping.shape(0);
  if (num_tokens == 0) {
    return;
  }
  ScatterParameters p{};
  p.k = tokens.k.strides;
  p.v = tokens.v.strides;
  p.k_cache = cache_strides(tokens.k_cache);
  p.v_cache = cache_strides(tokens.v_cache);
  p.v_cache_offset = (tokens.v_cache.offset() - tokens.k_cache.offset()) /
      int64_t(tokens.v_cache.itemsize());
  p.slot_mapping_stride = tokens.slot_mapping.strides(0);
  p.num_kv_heads = tokens.k_cache.shape(2);
  p.head_dim = tokens.k_cache.shape(3);
  p.head_dim_v = tokens.v_cache.shape(3);

  Options options;
  options.block_size = tokens.k_cache.shape(1);
  options.aligned = is_aligned(tokens.k) && is_aligned(tokens.v) && is_aligned(tokens.k_cache) &&
      is_aligned(tokens.v_cache);
  options.two_caches = !share_buffer(tokens.k_cache, tokens.v_cache);
  Kernel kernel{"scatter.metal", "scatter", {metal_bits(tokens.k_cache.dtype())}};
  encoder.set_compute_pipeline_state(pipeline(device, kernel, options));
  encoder.set_bytes(p, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(tokens.k.array, POMONA_BUFFER_K, tokens.k.offset);
  encoder.set_input_array(tokens.v.array, POMONA_BUFFER_V, tokens.v.offset);
  encoder.set_input_array(tokens.slot_mapping, POMONA_BUFFER_SLOT_MAPPING);
  encoder.set_output_array(tokens.k_cache, POMONA_BUFFER_K_CACHE);
  if (options.two_caches) {
    encoder.set_output_array(tokens.v_cache, POMONA_BUFFER_V_CACHE);
  }
  encoder.dispatch_threadgroups(
      MTL::Size(num_tokens, 2, 1), MTL::Size(kScatterThreads, 1, 1));
}

} // namespace pomona::metal
