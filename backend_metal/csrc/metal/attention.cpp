#include "metal/attention.h"

#include "common/bindings.h"
#include "metal/device_limits.h"
#include "metal/pipelines.h"
#include "metal/rows.h"

namespace pomona::metal {

namespace {

constexpr int kScatterThreads = 256;

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

const MTL::Buffer* buffer_of(const mx::array& a) {
  return static_cast<const MTL::Buffer*>(a.buffer().ptr());
}

// A cache that has been declared. Dispatches that use it do not wait for each other.
void bind_cache(mx::metal::CommandEncoder& encoder, const mx::array& cache, int slot) {
  encoder.set_buffer(buffer_of(cache), slot, cache.offset());
}

// Tells MLX once a launch what is done with its caches: its first dispatch waits for whoever wrote
// them or, where they are written, read them before, and later launches wait for this one. Where
// dispatches are concurrent MLX would not look for those who read.
void declare_caches(
    mx::metal::CommandEncoder& encoder, mx::array k_cache, mx::array v_cache, bool are_written) {
  auto declare = [&](mx::array& cache, int slot) {
    // MLX commits a command buffer when the arrays that it has met come to 40 Mi elements, since
    // memory may wait for it. A pool's does not, and is far larger: an array whose buffer is bound
    // already is not counted.
    bind_cache(encoder, cache, slot);
    if (are_written) {
      encoder.set_output_array(cache, slot);
    } else {
      encoder.set_input_array(cache, slot);
    }
  };
  declare(k_cache, POMONA_BUFFER_K_CACHE);
  if (!share_buffer(k_cache, v_cache)) {
    declare(v_cache, POMONA_BUFFER_V_CACHE);
  }
}

int num_tokens(const NewTokens& tokens) {
  return tokens.slot_mapping.shape(0);
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
  bind_cache(encoder, a.k_cache, POMONA_BUFFER_K_CACHE);
  bind_cache(encoder, a.v_cache, POMONA_BUFFER_V_CACHE);
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

// Of at least one token, to declared caches.
void add_scatter(
    mx::metal::Device& device, mx::metal::CommandEncoder& encoder, const NewTokens& tokens) {
  auto p = parameters_of(tokens);
  Options options;
  options.block_size = tokens.k_cache.shape(1);
  options.aligned = are_aligned(tokens);
  options.two_caches = !share_buffer(tokens.k_cache, tokens.v_cache);
  Kernel kernel{"attention/scatter.metal", "scatter", metal_bits(tokens.k_cache.dtype())};
  encoder.set_compute_pipeline_state(pipeline(device, kernel, options));
  encoder.set_bytes(p, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(tokens.k.array, POMONA_BUFFER_K, tokens.k.offset);
  encoder.set_input_array(tokens.v.array, POMONA_BUFFER_V, tokens.v.offset);
  encoder.set_input_array(tokens.slot_mapping, POMONA_BUFFER_SLOT_MAPPING);
  bind_cache(encoder, tokens.k_cache, POMONA_BUFFER_K_CACHE);
  if (options.two_caches) {
    bind_cache(encoder, tokens.v_cache, POMONA_BUFFER_V_CACHE);
  }
  encoder.dispatch_threadgroups(
      MTL::Size(num_tokens(tokens), 2, 1), MTL::Size(kScatterThreads, 1, 1));
}

} // namespace

void encode_attention(
    mx::metal::Device& device,
    mx::metal::CommandEncoder& encoder,
    const AttentionOptions& options,
    const AttentionArrays& a) {
  auto shape = shape_of(options, a);
  auto plan = plan_gpu_launch(device_limits(device), shape, batch_of(options, a));
  auto parameters = parameters_of(options, a);
  auto decode_parameters = with_splits(parameters, plan.decode);
  auto prefill_parameters = with_splits(parameters, plan.prefill);
  auto common = pipeline_options(options, a);
  auto type = metal_type(a.out.dtype());
  int dim = shape.head_dim, dim_v = shape.head_dim_v;
  // Decode's partial states, then prefill's.
  allocate(a.partials, plan.decode.num_partials + plan.prefill.num_partials);
  int64_t prefill_partials = plan.decode.num_partials * int64_t(sizeof(float));
  bool scatters = a.new_tokens && num_tokens(*a.new_tokens) > 0;
  if (plan.decode.grid.empty() && plan.prefill.grid.empty() && !scatters) {
    return;
  }
  declare_caches(encoder, a.k_cache, a.v_cache, scatters);
  {
    // Attention reads this step's tokens where scatter reads them, and nothing that scatter writes.
    auto concurrent = encoder.start_concurrent();
    if (!plan.decode.grid.empty()) {
      Kernel kernel{"attention/decode.metal", "decode", type, {dim, dim_v, plan.decode.row_tiles}};
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
      Kernel kernel{"attention/prefill.metal", "prefill", type, {dim, dim_v}};
      encoder.set_compute_pipeline_state(pipeline(device, kernel, prefill_options));
      bind_attention(encoder, prefill_parameters, a);
      if (prefill_options.has_partials) {
        encoder.set_output_array(a.partials, POMONA_BUFFER_PARTIALS, prefill_partials);
      }
      dispatch(encoder, plan.prefill.grid);
    }
    if (scatters) {
      add_scatter(device, encoder, *a.new_tokens);
    }
  }
  // The rows of one are not those of the other.
  auto concurrent = encoder.start_concurrent();
  if (!plan.reduce.empty()) {
    Kernel kernel{"attention/reduce.metal", "reduce", type, {dim_v}};
    encode_reduce(device, encoder, kernel, common, decode_parameters, a, 0, plan.reduce);
  }
  if (!plan.prefill.reduce.empty()) {
    Kernel kernel{"attention/prefill_reduce.metal", "prefill_reduce", type, {dim, dim_v}};
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
  if (num_tokens(tokens) > 0) {
    declare_caches(encoder, tokens.k_cache, tokens.v_cache, true);
    add_scatter(device, encoder, tokens);
  }
}

} // namespace pomona::metal
