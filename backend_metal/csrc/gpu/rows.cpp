#include "gpu/rows.h"

namespace pomona {

namespace {

constexpr int64_t kAlignment = 16; // bytes of the widest load

// Strides of dimensions with one element are never used, and may be anything.
int64_t stride(const mx::array& in, int dim) {
  return in.shape(dim) > 1 ? in.strides(dim) : 0;
}

bool is_multiple(int64_t bytes) {
  return bytes % kAlignment == 0;
}

} // namespace

bool has_whole_rows(const mx::array& in) {
  return in.strides(2) == 1 || in.shape(2) == 1 || in.size() == 0;
}

Rows rows_in_place(const mx::array& in) {
  return {in, 0, {stride(in, 0), stride(in, 1)}};
}

CacheStrides cache_strides(const mx::array& cache) {
  return {stride(cache, 0), stride(cache, 1), stride(cache, 2)};
}

bool is_aligned(const Rows& rows) {
  int64_t itemsize = rows.array.itemsize();
  return is_multiple(rows.array.offset() + rows.offset) &&
      is_multiple(rows.strides.token * itemsize) && is_multiple(rows.strides.head * itemsize);
}

bool is_aligned(const mx::array& cache) {
  int64_t itemsize = cache.itemsize();
  auto strides = cache_strides(cache);
  return is_multiple(cache.offset()) && is_multiple(strides.block * itemsize) &&
      is_multiple(strides.slot * itemsize) && is_multiple(strides.head * itemsize);
}

bool share_buffer(const mx::array& a, const mx::array& b) {
  return a.buffer().ptr() == b.buffer().ptr();
}

bool is_prefix(const Rows& a, const Rows& b) {
  return share_buffer(a.array, b.array) &&
      a.array.offset() + a.offset == b.array.offset() + b.offset &&
      a.strides.token == b.strides.token && a.strides.head == b.strides.head;
}

bool is_prefix(const mx::array& cache, const mx::array& other) {
  auto a = cache_strides(cache), b = cache_strides(other);
  return share_buffer(cache, other) && cache.offset() == other.offset() && a.block == b.block &&
      a.slot == b.slot && a.head == b.head;
}

} // namespace pomona
