// The heads of queries and keys, normalised and rotated; shaders/rotate_heads.metal says who owns what.
#include <metal_stdlib>

#include "cuda/rotate_heads_buffers.h"
#include "cuda/rounding.h"
#include "cuda/warp_sum.h"
#include "constants.h"
#include "parameters.h"
#include "rotary_pairs.h"

namespace pomona {

// Grid: (runs / kRotarySimdgroups, 1, 1).
template <typename T, int PAIRS>
inline void rotate_heads(const RotateHeadsParameters& p, const RotateHeadsBuffers& b) {
  const int lane = thread_index() % kSimdWidth;
  const int run = block_position().x * kRotarySimdgroups + thread_index() / kSimdWidth;
  const int64_t token = run / p.runs_per_token;
  if (token >= p.num_tokens) {
    return;
  }
  float cosines[PAIRS] = {}, sines[PAIRS] = {};
  const float position = p.scale * float(b.positions[token * p.position]);
  for (int i = 0; i < PAIRS; i++) {
    const int pair = i * kSimdWidth + lane;
    if (pair < p.rotated_pairs) {
      const float inverse = p.has_frequencies
          ? 1.0f / b.frequencies[pair * p.frequency]
          : exp2f(-(float(pair) / float(p.rotated_pairs)) * p.log2_base);
      const float angle = position * inverse;
      cosines[i] = cosf(angle);
      sines[i] = sinf(angle);
    }
  }
  int head = run % p.runs_per_token * p.heads_per_run;
  const int last = metal::min(head + p.heads_per_run, p.num_heads);
  const int num_pairs = p.head_dim / 2;
  for (; head < last; head++) {
    const bool is_query = head < p.num_q_heads;
    const int own_head = is_query ? head : head - p.num_q_heads;
    const int num_own_heads = is_query ? p.num_q_heads : p.num_heads - p.num_q_heads;
    const ElementStrides strides = is_query ? p.q : p.k;
    const T* from = static_cast<const T*>(is_query ? b.q : b.k) + token * strides.token +
        own_head * strides.head;
    T* to = static_cast<T*>(is_query ? b.q_out : b.k_out) +
        (token * num_own_heads + own_head) * p.head_dim;

    float first[PAIRS], second[PAIRS];
    float sum = 0.0f;
    for (int i = 0; i < PAIRS; i++) {
      const int pair = i * kSimdWidth + lane;
      if (pair < num_pairs) {
        const DimPair dims = dims_of_pair(pair, p.rotated_pairs, p.traditional);
        first[i] = to_float(from[dims.first * strides.dim]);
        second[i] = to_float(from[dims.second * strides.dim]);
        sum += first[i] * first[i] + second[i] * second[i];
      }
    }
    if (p.has_norm) {
      const float factor = rsqrtf(warp_sum(sum) / p.head_dim + p.epsilon);
      const T* weight = static_cast<const T*>(is_query ? b.q_weight : b.k_weight);
      const int64_t stride = is_query ? p.q_weight : p.k_weight;
      for (int i = 0; i < PAIRS; i++) {
        const int pair = i * kSimdWidth + lane;
        if (pair < num_pairs) {
          const DimPair dims = dims_of_pair(pair, p.rotated_pairs, p.traditional);
          first[i] = rounded_to<T>(
              to_float(weight[dims.first * stride]) * rounded_to<T>(first[i] * factor));
          second[i] = rounded_to<T>(
              to_float(weight[dims.second * stride]) * rounded_to<T>(second[i] * factor));
        }
      }
    }
    for (int i = 0; i < PAIRS; i++) {
      const int pair = i * kSimdWidth + lane;
      if (pair < num_pairs) {
        const DimPair dims = dims_of_pair(pair, p.rotated_pairs, p.traditional);
        const bool rotates = pair < p.rotated_pairs;
        to[dims.first] =
            from_float<T>(rotates ? first[i] * cosines[i] - second[i] * sines[i] : first[i]);
        to[dims.second] =
            from_float<T>(rotates ? first[i] * sines[i] + second[i] * cosines[i] : second[i]);
      }
    }
  }
}

} // namespace pomona
