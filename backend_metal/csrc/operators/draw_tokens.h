// Draws of tokens as one MLX primitive. As a graph, top_p alone is dozens of operations over the
// vocabulary.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include "common/parameters.h"

namespace pomona {

namespace mx = mlx::core;

constexpr int kDrawWords = sizeof(DrawOptions) / 4;

// What options say of tokens that may come, of what has come, and of what is added.
struct DrawTables {
  mx::array masks; // int32 [masks, vocab_size / 32, rounded up], a bit a token, from the lowest
  mx::array counts; // int32 [counts_rows, vocab_size]
  mx::array bias_ids; // int32 [n], ascending within a row's
  mx::array biases; // float32 [n]
};

// Inputs: logits [rows, vocab_size], options uint32 [rows, kDrawWords], then DrawTables. Outputs: int32
// [rows], on Metal followed by workspaces, as primitives.h has them: the best tokens of chunks and
// slices, candidates, and tallies.
class DrawTokens : public mx::Primitive {
 public:
  static constexpr int kWorkspaces = 3;

  // `cuts`: whether some row leaves tokens out by min_p, top_k or top_p; it must be said.
  DrawTokens(mx::Stream stream, bool cuts) : mx::Primitive(stream), cuts_(cuts) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  DEFINE_NAME(DrawTokens)

  // Of evaluated inputs but the logits. Raises std::invalid_argument.
  static void check_contiguous(const std::vector<mx::array>& inputs);

 private:
  bool cuts_;
};

// Logits and counts may have any strides, the others are contiguous. Raises std::invalid_argument for
// other shapes and dtypes. What options say of places in the tables is not checked. CPUs take float32
// logits alone, GPUs those of 2 bytes, too.
mx::array draw_tokens(
    const mx::array& logits,
    const mx::array& options,
    const DrawTables& tables,
    bool cuts,
    mx::Stream stream);

} // namespace pomona
