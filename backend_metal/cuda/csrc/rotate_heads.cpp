// The evaluation by CUDA of the operator that rotates heads: one kernel.
#include <bit>

#include "common/constants.h"
#include "cuda/csrc/launch.h"
#include "cuda/csrc/loaded.h"
#include "cuda/csrc/memory.h"
#include "cuda/kernels/rotate_heads_buffers.h"
#include "gpu/rotate_heads.h"

namespace pomona {

namespace {

using cuda::pointer;

template <typename T = void>
T* pointer_if(const mx::array* array) {
  return array ? pointer<T>(*array) : nullptr;
}

// Who owns what of a head: sizes of the kernel.
struct HeadLanes {
  int pairs; // of a lane, neighbours
  int lanes;
};

constexpr int kVectorPairs = 4; // of a lane whose copies are of 4 elements

constexpr int kManyRuns = 4096; // that keep a device busy
constexpr int kMostHeads = 32; // of a run

// Whether so many neighbouring elements may be copied at once, wherever a lane's pairs begin.
bool has_vectors(const mx::array& heads, const ElementStrides& strides, int elements) {
  return strides.dim == 1 && strides.token % elements == 0 && strides.head % elements == 0 &&
      heads.offset() % (elements * int64_t(heads.itemsize())) == 0;
}

bool has_vectors(const mx::array* weight, int64_t stride, int elements) {
  return !weight ||
      (stride == 1 && weight->offset() % (elements * int64_t(weight->itemsize())) == 0);
}

// As the kernel copies, whose vectors are of 4 elements or 2.
bool has_vectors(const RotateHeadsArrays& a, const RotateHeadsParameters& p, int pairs) {
  int elements = pairs % 4 == 0 ? 4 : 2;
  return p.head_dim / 2 % pairs == 0 && p.rotated_pairs % pairs == 0 &&
      has_vectors(a.q, p.q, elements) && has_vectors(a.k, p.k, elements) &&
      has_vectors(a.q_weight, p.q_weight, elements) &&
      has_vectors(a.k_weight, p.k_weight, elements);
}

HeadLanes plan_lanes(const RotateHeadsArrays& a, const RotateHeadsParameters& p) {
  int lanes = p.head_dim / 2 / kVectorPairs;
  if (lanes > 0 && lanes <= kSimdWidth && std::has_single_bit(unsigned(lanes)) &&
      has_vectors(a, p, kVectorPairs)) {
    return {kVectorPairs, lanes};
  }
  return {rotary_pairs(p.head_dim), kSimdWidth};
}

} // namespace

void RotateHeads::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cu::get_command_encoder(stream());
  cuda::allocate(outputs[0], encoder);
  cuda::allocate(outputs[1], encoder);
  auto a = rotate_heads_arrays(inputs, outputs, options_);
  if (a.empty()) {
    return;
  }
  auto parameters = parameters_of(a, options_);
  RotateHeadsBuffers buffers{
      pointer(a.q),
      pointer(a.k),
      pointer<int>(a.positions),
      pointer_if(a.q_weight),
      pointer_if(a.k_weight),
      pointer_if<float>(a.frequencies),
      pointer(a.q_out),
      pointer(a.k_out)};
  for (const auto& in : inputs) {
    encoder.set_input_array(in);
  }
  encoder.set_output_array(a.q_out);
  encoder.set_output_array(a.k_out);
  auto [pairs, lanes] = plan_lanes(a, parameters);
  GpuGrid grid = plan_rotate_heads(parameters, {kSimdWidth / lanes, kManyRuns, kMostHeads});
  cuda::Options options;
  options.aligned = has_vectors(a, parameters, pairs);
  options.reads_ahead = cuda::is_loaded(a.positions) && !a.frequencies;
  cuda::add_kernel(
      encoder,
      {"rotate_heads.cu",
       "rotate_heads",
       cuda::element_type(a.q.dtype()),
       {pairs, lanes},
       "RotateHeads",
       grid.threads},
      options,
      grid,
      parameters,
      buffers);
}

} // namespace pomona
