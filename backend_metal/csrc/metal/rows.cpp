#include "metal/rows.h"

#include <mlx/allocator.h>

#include "common/bindings.h"
#include "common/constants.h"
#include "metal/pipelines.h"

namespace pomona::metal {

namespace {

constexpr int64_t kAlignment = 16; // bytes at which packed rows start
constexpr int kPackThreads = 256;

int64_t packed_bytes(const mx::array& in) {
  return (int64_t(in.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
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
    return rows_in_place(in);
  }
  PackParameters parameters{
      {in.strides(0), in.strides(1), in.strides(2)}, in.shape(1), in.shape(2)};
  Kernel kernel{"attention/scatter.metal", "pack", metal_bits(in.dtype())};
  encoder.set_compute_pipeline_state(pipeline(device, kernel, {}));
  encoder.set_bytes(parameters, POMONA_BUFFER_PARAMETERS);
  encoder.set_input_array(in, POMONA_BUFFER_FROM);
  encoder.set_output_array(memory_, POMONA_BUFFER_TO, used_);
  encoder.dispatch_threadgroups(MTL::Size(in.shape(0), 1, 1), MTL::Size(kPackThreads, 1, 1));
  Rows rows{memory_, used_, {int64_t(in.shape(1)) * in.shape(2), in.shape(2)}};
  used_ += packed_bytes(in);
  return rows;
}

void allocate(mx::array& memory, int64_t count) {
  mx::array::Flags flags{true, true, true};
  memory.set_data(
      mx::allocator::malloc(count * memory.itemsize()), count, mx::Strides{1}, flags);
}

} // namespace pomona::metal
