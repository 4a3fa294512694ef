// The operator between a projection and attention: it normalises and rotates the heads of queries and
// of keys. This one is for GPUs; cpu/layers/float_heads.h has that of CPUs. Shapes and dtypes have been
// checked in Python (models/layers/rotary.py).
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <optional>
#include <vector>

namespace pomona {

namespace mx = mlx::core;

struct RotaryOptions {
  int dims; // of each head, that are rotated
  bool traditional; // pairs are neighbours
  float base; // 0: frequencies are given
  float scale; // of positions
  float epsilon; // of the norm
  bool has_norm;

  bool has_frequencies() const {
    return base == 0;
  }
  bool operator==(const RotaryOptions&) const = default;
};

struct HeadWeights {
  mx::array q; // [head_dim] each
  mx::array k;
};

// Inputs: q [num_tokens, num_q_heads, head_dim], k [num_tokens, num_kv_heads, head_dim], positions
// int32 [num_tokens], then weights of q and k [head_dim] if has_norm, then frequencies float32
// [dims / 2] if has_frequencies. Outputs: q and k, contiguous.
class RotateHeads : public mx::Primitive {
 public:
  RotateHeads(mx::Stream stream, RotaryOptions options)
      : mx::Primitive(stream), options_(options) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(RotateHeads)

 private:
  RotaryOptions options_;
};

// `frequencies` in place of a base.
using RotateHeadsFunction = std::vector<mx::array>(
    const mx::array& q,
    const mx::array& k,
    const mx::array& positions,
    const std::optional<HeadWeights>& weights,
    const std::optional<mx::array>& frequencies,
    const RotaryOptions& options,
    mx::Stream stream);

RotateHeadsFunction rotate_heads;

} // namespace pomona
