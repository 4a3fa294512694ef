#include "cuda/csrc/attention.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "cuda/csrc/launch.h"
#include "cuda/csrc/launch_plan.h"
#include "cuda/csrc/loaded.h"
#include "cuda/csrc/memory.h"
#include "cuda/csrc/split_counters.h"
#include "cuda/kernels/attention_buffers.h"
#include "cuda/kernels/attention_tile.h"
#include "cuda/kernels/warpgroup_tile.h"
#include "plan_arithmetic.h"

namespace pomona::cuda {

namespace {

// An unsigned integer of the dtype's size, for kernels that only copy.
std::string_view bits_type(mx::Dtype dtype) {
  return mx::size_of(dtype) == 2 ? "unsigned short" : "unsigned";
}

Options options_of(const AttentionOptions& options, const AttentionArrays& a) {
  Options o;
  o.block_size = a.k_cache.shape(1);
  o.has_window = options.window > 0;
  o.has_softcap = options.softcap > 0.0f;
  o.has_sinks = a.sinks != nullptr;
  o.has_new_tokens = a.new_tokens.has_value();
  o.writes_new_tokens = a.new_tokens && options.decodes;
  o.aligned = are_aligned(a) && is_aligned(a.q);
  return o;
}

// Whether a token's heads lie next to each other, in the step and in the cache.
bool have_adjacent_heads(const Rows& rows, const mx::array& cache) {
  int heads = cache.shape(2), dim = cache.shape(3);
  return heads == 1 || (rows.strides.head == dim && cache.strides(2) == dim);
}

// Whether a prefill by warpgroups writes the step's tokens, of which some wait in what shared memory is left.
bool writes_tokens(const NewTokens& tokens) {
  int dim = tokens.k_cache.shape(3), dim_v = tokens.v_cache.shape(3);
  int64_t longest_row =
      int64_t(tokens.k_cache.shape(2)) * std::max(dim, dim_v) * tokens.k_cache.itemsize();
  return have_adjacent_heads(tokens.k, tokens.k_cache) &&
      have_adjacent_heads(tokens.v, tokens.v_cache) &&
      longest_row <= warpgroup_tile(dim, dim_v).write_stage_bytes;
}

// Whether all that decodes read, but the step's own tokens, was there before the kernels before.
bool has_all_loaded(const AttentionArrays& a) {
  return a.new_tokens && is_loaded(a.new_tokens->slot_mapping) && is_loaded(a.block_tables) &&
      is_loaded(a.seq_lens) && is_loaded(a.cu_seqlens_q);
}

AttentionBuffers buffers_of(const AttentionArrays& a, int64_t partials_offset) {
  AttentionBuffers b{};
  b.q = pointer(a.q);
  if (a.new_tokens) {
    b.k = pointer(a.new_tokens->k);
    b.v = pointer(a.new_tokens->v);
    b.slot_mapping = pointer<int>(a.new_tokens->slot_mapping);
  }
  b.k_cache = pointer(a.k_cache);
  b.v_cache = pointer(a.v_cache);
  b.block_tables = pointer<int>(a.block_tables);
  b.seq_lens = pointer<int>(a.seq_lens);
  b.cu_seqlens_q = pointer<int>(a.cu_seqlens_q);
  b.sinks = a.sinks ? pointer<float>(*a.sinks) : nullptr;
  b.out = pointer(a.out);
  b.partials = pointer<float>(a.partials) + partials_offset;
  return b;
}

void use_arrays(mx::cu::CommandEncoder& encoder, const AttentionArrays& a) {
  encoder.set_input_array(a.q.array);
  if (a.new_tokens) {
    encoder.set_input_array(a.new_tokens->k.array);
    encoder.set_input_array(a.new_tokens->v.array);
    encoder.set_input_array(a.new_tokens->slot_mapping);
  }
  for (const auto* array : {&a.block_tables, &a.seq_lens, &a.cu_seqlens_q}) {
    encoder.set_input_array(*array);
  }
  if (a.sinks) {
    encoder.set_input_array(*a.sinks);
  }
  for (const auto* array : {&a.k_cache, &a.v_cache}) {
    encoder.set_output_array(*array);
  }
  encoder.set_output_array(a.out);
  encoder.set_output_array(a.partials);
}

// By the kernel that serves all rows, whose keys have no splits.
void encode_alike(
    mx::cu::CommandEncoder& encoder, const AttentionOptions& options, const AttentionArrays& a) {
  auto shape = shape_of(options, a);
  auto grid = plan_alike(shape, batch_of(options, a));
  allocate(a.partials, encoder);
  encoder.add_temporary(a.partials);
  if (!grid.empty()) {
    auto own = options_of(options, a);
    own.writes_new_tokens = false;
    use_arrays(encoder, a);
    add_kernel(
        encoder,
        {"attend_alike.cu",
         "attend_alike",
         element_type(a.out.dtype()),
         {shape.head_dim, shape.head_dim_v},
         "Attention",
         grid.threads},
        own,
        grid,
        parameters_of(options, a),
        buffers_of(a, 0));
  }
  if (a.new_tokens) {
    encode_scatter(encoder, *a.new_tokens);
  }
}

} // namespace

bool prefills_by_warpgroups(const AttentionOptions& options, const AttentionArrays& a) {
  // Largest scores are found before they are scaled.
  return has_warpgroup_products() && are_aligned(a) && is_aligned(a.q) && options.scale > 0.0f &&
      has_warpgroup_tile(a.k_cache.shape(3), a.v_cache.shape(3), int(a.out.itemsize()));
}

LaunchPlan plan_of(const AttentionOptions& options, const AttentionArrays& a) {
  return plan_launch(
      device_limits(),
      shape_of(options, a),
      batch_of(options, a),
      prefills_by_warpgroups(options, a));
}

void encode_attention(
    mx::Stream stream, const AttentionOptions& options, const AttentionArrays& a) {
  auto& encoder = mx::cu::get_command_encoder(stream);
  if (options.one_kernel) {
    encode_alike(encoder, options, a);
    return;
  }
  auto shape = shape_of(options, a);
  auto plan = plan_of(options, a);
  auto floats = static_cast<int>(plan.decode.num_partials + plan.prefill.num_partials);
  a.partials = mx::array({floats}, mx::float32, nullptr, {});
  allocate(a.partials, encoder);
  encoder.add_temporary(a.partials);
  auto parameters = parameters_of(options, a);
  auto type = element_type(a.out.dtype());
  int dim = shape.head_dim, dim_v = shape.head_dim_v;
  auto of_decode = options_of(options, a), of_prefill = of_decode;
  of_decode.has_partials = plan.decode.num_partials > 0;
  of_decode.folds_splits = plan.decode.folds_splits;
  of_prefill.has_partials = plan.prefill.num_partials > 0;
  auto decode_parameters = with_splits(parameters, plan.decode);
  auto prefill_parameters = with_splits(parameters, plan.prefill);
  auto decode_buffers = buffers_of(a, 0);
  auto prefill_buffers = buffers_of(a, plan.decode.num_partials);
  prefill_buffers.work_heads = plan.work_heads;
  prefill_buffers.work_seqs = plan.work_seqs;
  bool warpgroups = prefills_by_warpgroups(options, a);
  bool shares_work = warpgroups && !plan.prefill.grid.empty();
  of_prefill.writes_new_tokens = shares_work && a.new_tokens && writes_tokens(*a.new_tokens);
  const mx::array* counters = nullptr;
  if (of_decode.folds_splits || shares_work) {
    counters = &split_counters(stream, encoder);
    decode_buffers.counters = pointer<unsigned>(*counters);
    prefill_buffers.counters = decode_buffers.counters + kWorkCounter;
  }

  auto add = [&](const char* file,
                 const char* function,
                 std::array<int, 2> sizes,
                 const GpuGrid& grid,
                 bool is_decode,
                 bool reads_ahead = false) {
    auto kernel_options = is_decode ? of_decode : of_prefill;
    kernel_options.reads_ahead = reads_ahead;
    use_arrays(encoder, a);
    if (counters) {
      encoder.set_output_array(*counters);
    }
    add_kernel(
        encoder,
        {file, function, type, sizes, "Attention", grid.threads},
        kernel_options,
        grid,
        is_decode ? decode_parameters : prefill_parameters,
        is_decode ? decode_buffers : prefill_buffers);
  };
  {
    std::optional<mx::cu::CommandEncoder::ConcurrentContext> concurrent;
    if (!plan.decode.grid.empty() && !plan.prefill.grid.empty()) {
      concurrent.emplace(encoder);
    }
    if (!plan.decode.grid.empty()) {
      add("decode.cu", "decode", {dim, dim_v}, plan.decode.grid, true, has_all_loaded(a));
    }
    if (!plan.prefill.grid.empty()) {
      add(
          warpgroups ? "warpgroup_prefill.cu" : "prefill.cu",
          warpgroups ? "warpgroup_prefill" : "prefill",
          {dim, dim_v},
          plan.prefill.grid,
          false);
    }
  }
  if (!plan.reduce.empty()) {
    int keys = attention_tile(dim, dim_v, int(a.out.itemsize()), true).keys;
    add("reduce.cu", "decode_reduce", {dim_v, keys}, plan.reduce, true, has_all_loaded(a));
  }
  if (!plan.prefill.reduce.empty()) {
    add("reduce.cu", "prefill_reduce", {dim_v}, plan.prefill.reduce, false);
  }
  if (a.new_tokens && !of_decode.writes_new_tokens && !of_prefill.writes_new_tokens) {
    encode_scatter(encoder, *a.new_tokens);
  }
}

void encode_scatter(mx::cu::CommandEncoder& encoder, const NewTokens& tokens) {
  int num_tokens = tokens.slot_mapping.shape(0);
  if (num_tokens == 0) {
    return;
  }
  Options options;
  options.block_size = tokens.k_cache.shape(1);
  options.aligned = are_aligned(tokens);
  ScatterBuffers buffers{
      pointer(tokens.k),
      pointer(tokens.v),
      pointer(tokens.k_cache),
      pointer(tokens.v_cache),
      pointer<int>(tokens.slot_mapping)};
  encoder.set_input_array(tokens.k.array);
  encoder.set_input_array(tokens.v.array);
  encoder.set_input_array(tokens.slot_mapping);
  encoder.set_output_array(tokens.k_cache);
  encoder.set_output_array(tokens.v_cache);
  add_kernel(
      encoder,
      {"scatter.cu", "scatter", bits_type(tokens.k_cache.dtype()), {}, "Scatter", kCopyThreads},
      options,
      {ceil_div(num_tokens, kScatterTokens), 2, 1, kCopyThreads, 0},
      parameters_of(tokens),
      buffers);
}

Rows rows_of(mx::cu::CommandEncoder& encoder, const mx::array& in) {
  if (has_whole_rows(in)) {
    return rows_in_place(in);
  }
  mx::array packed(in.shape(), in.dtype(), nullptr, {});
  allocate(packed, encoder);
  encoder.add_temporary(packed);
  encoder.set_input_array(in);
  encoder.set_output_array(packed);
  add_kernel(
      encoder,
      {"pack.cu", "pack_rows", bits_type(in.dtype()), {}, "Pack", kCopyThreads},
      {},
      {in.shape(0), 1, 1, kCopyThreads, 0},
      PackParameters{
          {in.strides(0), in.strides(1), in.strides(2)}, in.shape(1), in.shape(2)},
      PackBuffers{pointer(in), pointer(packed)});
  return rows_in_place(packed);
}

} // namespace pomona::cuda
