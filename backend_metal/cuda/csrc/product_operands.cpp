#include "cuda/csrc/product_operands.h"

#include "cuda/csrc/launch.h"
#include "cuda/csrc/memory.h"
#include "cuda/kernels/attention_buffers.h"
#include "common/parameters.h"

namespace pomona::cuda {

namespace {

constexpr int kCopyBytes = 16;

} // namespace

mx::array aligned_rows(mx::cu::CommandEncoder& encoder, const mx::array& rows) {
  if (rows.offset() % kCopyBytes == 0) {
    return rows;
  }
  mx::array packed(rows.shape(), rows.dtype(), nullptr, {});
  allocate(packed, encoder);
  encoder.add_temporary(packed);
  encoder.set_input_array(rows);
  encoder.set_output_array(packed);
  int depth = rows.shape(-1);
  add_kernel(
      encoder,
      {"pack.cu", "pack_rows", "unsigned short", {}, "Pack", kCopyThreads},
      {},
      {static_cast<int>(rows.size() / depth), 1, 1, kCopyThreads, 0},
      PackParameters{{depth, depth, 1}, 1, depth},
      PackBuffers{pointer(rows), pointer(packed)});
  return packed;
}

bool are_rows(const mx::array& in) {
  return in.is_available() && in.flags().row_contiguous;
}

mx::array as_rows(const mx::array& in, mx::Stream stream) {
  return are_rows(in) ? in : mx::contiguous(in, false, stream);
}

} // namespace pomona::cuda
