#include "cuda/product_operands.h"

#include <array>
#include <map>
#include <mutex>
#include <span>

#include "cuda/attention_buffers.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/staging.h"
#include "parameters.h"

namespace pomona::cuda {

namespace {

constexpr int kCopyBytes = 16;

} // namespace

const mx::array& split_counters(mx::Stream stream, mx::cu::CommandEncoder& encoder) {
  static std::mutex mutex;
  static auto* arrays = new std::map<int, mx::array>;
  std::lock_guard lock(mutex);
  auto found = arrays->find(stream.index);
  if (found == arrays->end()) {
    mx::array zeros({kMostSplitTiles}, mx::uint32, nullptr, {});
    allocate(zeros, encoder);
    std::array<unsigned, kMostSplitTiles> values{};
    Staged::copy_of(std::as_bytes(std::span(values)))
        ->upload(
            reinterpret_cast<CUdeviceptr>(pointer(zeros)),
            static_cast<cudaStream_t>(encoder.stream()));
    found = arrays->emplace(stream.index, std::move(zeros)).first;
  }
  return found->second;
}

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
      {"cuda/pack.cu", "pack_rows", "unsigned short", {}, "Pack", kCopyThreads},
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
