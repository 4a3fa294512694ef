// The primitives' CPU evaluation: gathers pointers and strides now, reads memory when its turn on
// the stream comes, because the inputs may still be under way.
#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include "cpu/attention/attention.h"
#include "cpu/arrays/contiguous.h"
#include "cpu/arrays/element_type.h"
#include "cpu/launch/metadata_checks.h"
#include "cpu/attention/scatter.h"
#include "operators/operators.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;
using cpu::AttentionArguments;
using cpu::ScatterArguments;

const int32_t* ints_of(const mx::array& in, mx::cpu::CommandEncoder& encoder) {
  return row_contiguous(in, encoder).data<int32_t>();
}

cpu::Rows rows_of(const mx::array& in, mx::cpu::CommandEncoder& encoder) {
  bool whole_rows = in.strides(2) == 1 || in.size() == 0;
  mx::array rows = whole_rows ? in : packed(in, encoder);
  return {rows.data<void>(), rows.strides(0), rows.strides(1)};
}

cpu::Cache cache_of(const std::string& name, const mx::array& cache) {
  check_cache_strides(name, cache);
  auto& strides = cache.strides();
  return {const_cast<mx::array&>(cache).data<void>(), strides[0], strides[1], strides[2]};
}

ScatterArguments scatter_arguments(
    const mx::array& k,
    const mx::array& v,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array& slot_mapping,
    mx::cpu::CommandEncoder& encoder) {
  ScatterArguments a{};
  a.type = element_type(k_cache.dtype());
  a.num_tokens = k.shape(0);
  a.num_kv_heads = k_cache.shape(2);
  a.head_dim = k_cache.shape(3);
  a.head_dim_v = v_cache.shape(3);
  a.block_size = k_cache.shape(1);
  a.k = rows_of(k, encoder);
  a.v = rows_of(v, encoder);
  a.k_cache = cache_of("k_cache", k_cache);
  a.v_cache = cache_of("v_cache", v_cache);
  a.slot_mapping = ints_of(slot_mapping, encoder);
  return a;
}

AttentionArguments attention_arguments(
    const AttentionOptions& options,
    const mx::array& q,
    const mx::array& k_cache,
    const mx::array& v_cache,
    const mx::array* metadata, // block_tables, seq_lens, cu_seqlens_q
    const mx::array* sinks,
    mx::array& out,
    mx::cpu::CommandEncoder& encoder) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  AttentionArguments a{};
  a.type = element_type(k_cache.dtype());
  a.num_seqs = metadata[0].shape(0);
  a.max_blocks_per_seq = metadata[0].shape(1);
  a.num_q_heads = q.shape(1);
  a.num_kv_heads = k_cache.shape(2);
  a.head_dim = k_cache.shape(3);
  a.head_dim_v = v_cache.shape(3);
  a.block_size = k_cache.shape(1);
  a.scale = options.scale;
  a.window = options.window;
  a.softcap = options.softcap;
  a.one_kernel = options.one_kernel;
  a.q = rows_of(q, encoder);
  a.k_cache = cache_of("k_cache", k_cache);
  a.v_cache = cache_of("v_cache", v_cache);
  a.out = {out.data<void>(), out.strides(0), out.strides(1)};
  a.block_tables = ints_of(metadata[0], encoder);
  a.seq_lens = ints_of(metadata[1], encoder);
  a.cu_seqlens_q = ints_of(metadata[2], encoder);
  if (sinks) {
    a.sinks = row_contiguous(*sinks, encoder).data<float>();
  }
  return a;
}

} // namespace

void ReshapeAndCache::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  auto a = scatter_arguments(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], encoder);
  outputs[0].copy_shared_buffer(inputs[2]);
  outputs[1].copy_shared_buffer(inputs[3]);
  int64_t num_slots = int64_t(inputs[2].shape(0)) * a.block_size;
  encoder.dispatch([a, num_slots]() {
    cpu::check_slots(a.slot_mapping, a.num_tokens, num_slots);
    cpu::scatter(a, cpu::ThreadPool::shared());
  });
}

void PagedAttention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const mx::array* sinks = inputs.size() > 6 ? &inputs[6] : nullptr;
  auto a = attention_arguments(
      options_, inputs[0], inputs[1], inputs[2], &inputs[3], sinks, outputs[0], encoder);
  int num_tokens = inputs[0].shape(0), num_blocks = inputs[1].shape(0);
  encoder.dispatch([a, num_tokens, num_blocks]() {
    check_sequences(a, num_tokens, num_blocks);
    cpu::attend(a, cpu::ThreadPool::shared());
  });
}

void ScatterPagedAttention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  auto writes = scatter_arguments(inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], encoder);
  const mx::array* sinks = inputs.size() > 9 ? &inputs[9] : nullptr;
  auto a = attention_arguments(
      options_, inputs[0], inputs[3], inputs[4], &inputs[6], sinks, outputs[0], encoder);
  a.k = writes.k;
  a.v = writes.v;
  a.slot_mapping = writes.slot_mapping;
  outputs[1].copy_shared_buffer(inputs[3]);
  outputs[2].copy_shared_buffer(inputs[4]);
  int num_blocks = inputs[3].shape(0);
  encoder.dispatch([a, writes, num_blocks]() {
    cpu::check_slots(writes.slot_mapping, writes.num_tokens, int64_t(num_blocks) * a.block_size);
    check_sequences(a, writes.num_tokens, num_blocks);
    cpu::scatter(writes, cpu::ThreadPool::shared());
    cpu::attend(a, cpu::ThreadPool::shared());
  });
}

} // namespace pomona
