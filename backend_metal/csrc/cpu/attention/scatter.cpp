#include "cpu/attention/scatter.h"

#include <algorithm>
#include <cstring>

namespace pomona::cpu {

namespace {

// Below this many bytes a second thread costs more than it brings.
constexpr int64_t kMinParallelBytes = 1 << 18;
constexpr int kTokensPerTask = 32;

char* at(void* data, int64_t element, int64_t itemsize) {
  return static_cast<char*>(data) + element * itemsize;
}

void copy_heads(
    char* to,
    int64_t to_stride,
    const char* from,
    int64_t from_stride,
    int num_heads,
    int head_dim,
    int64_t itemsize) {
  int64_t bytes = head_dim * itemsize;
  if (to_stride == head_dim && from_stride == head_dim) {
    std::memcpy(to, from, num_heads * bytes);
    return;
  }
  for (int head = 0; head < num_heads; head++) {
    std::memcpy(to + head * to_stride * itemsize, from + head * from_stride * itemsize, bytes);
  }
}

void store_token(
    const ScatterArguments& a, const Rows& rows, const Cache& cache, int head_dim, int token) {
  int64_t slot = a.slot_mapping[token];
  if (slot < 0) {
    return;
  }
  int64_t itemsize = size_of(a.type);
  int64_t place = slot / a.block_size * cache.block_stride + slot % a.block_size * cache.slot_stride;
  copy_heads(
      at(cache.data, place, itemsize),
      cache.head_stride,
      at(rows.data, token * rows.token_stride, itemsize),
      rows.head_stride,
      a.num_kv_heads,
      head_dim,
      itemsize);
}

} // namespace

void scatter(const ScatterArguments& a, ThreadPool& pool) {
  auto store_tokens = [&](int first, int last) {
    for (int token = first; token < last; token++) {
      store_token(a, a.k, a.k_cache, a.head_dim, token);
      store_token(a, a.v, a.v_cache, a.head_dim_v, token);
    }
  };
  int64_t bytes_per_token =
      size_of(a.type) * a.num_kv_heads * (int64_t(a.head_dim) + a.head_dim_v);
  if (a.num_tokens * bytes_per_token < kMinParallelBytes) {
    store_tokens(0, a.num_tokens);
    return;
  }
  int num_tasks = (a.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  pool.parallel_for(num_tasks, [&](int i) {
    store_tokens(i * kTokensPerTask, std::min((i + 1) * kTokensPerTask, a.num_tokens));
  });
}

} // namespace pomona::cpu
