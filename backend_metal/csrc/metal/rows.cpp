#include "metal/rows.h"

#include <mlx/allocator.h>

#include "bindings.h"
#include "constants.h"
#include "metal/pipelines.h"

namespace pomona::metal {

namespace {

constexpr int64_t kAlignment = 16; // bytes of the widest load
constexpr int kPackThreads = 256;

bool has_whole_rows(const mx::array& in) {
  return in.strides(2) == 1 || in.shape(2) == 1 || in.size() == 0;
}

int64_t packed_bytes(const mx::array& in) {
  return (int64_t(in.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

// Strides of dimensions with one element are never used, and may be anything.
int64_t stride(const mx::array& in, int dim) {
  return in.shape(dim) > 1 ? in.strides(dim) : 0;
}

bool is_multiple(int64_t bytes) {
  return bytes % kAlignment == 0;
}

} // namespace

Packing::Packing(mx::array& memory, const std::vector<mx::array>& inputs) : memory_(memory) {
  int64_t bytes = 0;
  for (const auto& in : inputs) {
    bytes += has_whole_rows(in) ? 0 : packed_bytes(in);
  }
  allocate(memory_, bytes / int64_t(memory_.itemsize()));
}

Rows Packing::rows(
    const mx::array& in, mx::metal::Device& device, mx::metal::CommandEncoder& encoder) {
  if (has_whole_rows(in)) {
    return {in, 0, {stride(in, 0), stride(in, 1)}};
  }
  PackParameters parameters{
      {in.strides(0), in.strides(1), in.strides(2)}, in.shape(1), in.shape(2)};
  Kernel kernel{"scatter.metal", "pack", {metal_bits(in.dtype())}};
  encoder.set_compute_pipeline_state(pipeline(device, kernel, {}));
  encoder.set_bytes(parameters, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(in, POMONA_BUFFER_FROM);
  encoder.set_output_array(memory_, POMONA_BUFFER_TO, used_);
  encoder.dispatch_threadgroups(MTL::Size(in.shape(0), 1, 1), MTL::Size(kPackThreads, 1, 1));
  Rows rows{memory_, used_, {int64_t(in.shape(1)) * in.shape(2), in.shape(2)}};
  used_ += packed_bytes(in);
  return rows;
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

void allocate(mx::array& memory, int64_t count) {
  mx::array::Flags flags{true, true, true};
  memory.set_data(
      mx::allocator::malloc(count * memory.itemsize()), count, mx::Strides{1}, flags);
}

} // namespace pomona::metal
