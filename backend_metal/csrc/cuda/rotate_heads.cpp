// The evaluation by CUDA of the operator that rotates heads: one kernel.
#include "cuda/launch.h"
#include "cuda/loaded.h"
#include "cuda/memory.h"
#include "cuda/rotate_heads_buffers.h"
#include "gpu/rotate_heads.h"

namespace pomona {

namespace {

using cuda::pointer;

template <typename T = void>
T* pointer_if(const mx::array* array) {
  return array ? pointer<T>(*array) : nullptr;
}

// Whether two neighbouring elements are one word, wherever a lane's pairs begin.
bool has_words(const mx::array& heads, const ElementStrides& strides) {
  return strides.dim == 1 && strides.token % 2 == 0 && strides.head % 2 == 0 &&
      heads.offset() % 4 == 0;
}

bool has_words(const mx::array* weight, int64_t stride) {
  return !weight || (stride == 1 && weight->offset() % 4 == 0);
}

bool has_words(const RotateHeadsArrays& a, const RotateHeadsParameters& p, int pairs) {
  return p.head_dim / 2 % pairs == 0 && p.rotated_pairs % pairs == 0 && has_words(a.q, p.q) &&
      has_words(a.k, p.k) && has_words(a.q_weight, p.q_weight) &&
      has_words(a.k_weight, p.k_weight);
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
  GpuGrid grid = plan_rotate_heads(parameters);
  int pairs = rotary_pairs(parameters.head_dim);
  cuda::Options options;
  options.aligned = has_words(a, parameters, pairs);
  options.reads_ahead = cuda::is_loaded(a.positions) && !a.frequencies;
  cuda::add_kernel(
      encoder,
      {"cuda/rotate_heads.cu",
       "rotate_heads",
       cuda::element_type(a.q.dtype()),
       {pairs},
       "RotateHeads",
       grid.threads},
      options,
      grid,
      parameters,
      buffers);
}

} // namespace pomona
