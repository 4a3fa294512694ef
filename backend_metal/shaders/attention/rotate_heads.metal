// The heads of queries and keys on their way from a projection to attention: optionally normalised,
// each by the root of its mean square, then rotated by its token's position.
//
// A simdgroup owns `heads_per_run` heads of one token, and computes that token's angles once. A lane
// owns every 32nd pair of a head's dimensions, which it holds in registers; only the sum of squares
// is shared. What is computed, and where it is rounded, is as in MLX's rms_norm and rope, so that
// either may compute a model's heads.
#include <metal_stdlib>

#include "../common/bindings.h"
#include "../common/constants.h"
#include "../common/parameters.h"
#include "rotary_pairs.h"

// Grid: (runs / kRotarySimdgroups, 1, 1).
template <typename T, int PAIRS>
[[kernel]] void rotate_heads(
    constant pomona::RotateHeadsParameters& p [[buffer(POMONA_BUFFER_PARAMETERS)]],
    const device T* q [[buffer(POMONA_BUFFER_Q)]],
    const device T* k [[buffer(POMONA_BUFFER_K)]],
    const device int* positions [[buffer(POMONA_BUFFER_POSITIONS)]],
    const device T* q_weight [[buffer(POMONA_BUFFER_Q_WEIGHT)]],
    const device T* k_weight [[buffer(POMONA_BUFFER_K_WEIGHT)]],
    const device float* frequencies [[buffer(POMONA_BUFFER_FREQUENCIES)]],
    device T* q_out [[buffer(POMONA_BUFFER_Q_OUT)]],
    device T* k_out [[buffer(POMONA_BUFFER_K_OUT)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  using namespace pomona;
  int run = group_position.x * kRotarySimdgroups + simdgroup;
  int64_t token = run / p.runs_per_token;
  if (token >= p.num_tokens) {
    return;
  }
  float cosines[PAIRS] = {}, sines[PAIRS] = {};
  float position = p.scale * float(positions[token * p.position]);
  for (int i = 0; i < PAIRS; i++) {
    int pair = i * kSimdWidth + lane;
    if (pair < p.rotated_pairs) {
      float inverse = p.has_frequencies ? 1.0f / frequencies[pair * p.frequency]
                                        : metal::exp2(-(float(pair) / float(p.rotated_pairs)) * p.log2_base);
      float angle = position * inverse;
      cosines[i] = metal::fast::cos(angle);
      sines[i] = metal::fast::sin(angle);
    }
  }
  int head = run % p.runs_per_token * p.heads_per_run;
  int last = metal::min(head + p.heads_per_run, p.num_heads);
  int num_pairs = p.head_dim / 2;
  for (; head < last; head++) {
    bool is_query = head < p.num_q_heads;
    int own_head = is_query ? head : head - p.num_q_heads;
    int num_own_heads = is_query ? p.num_q_heads : p.num_heads - p.num_q_heads;
    ElementStrides strides = is_query ? p.q : p.k;
    const device T* from =
        (is_query ? q : k) + token * strides.token + own_head * strides.head;
    device T* to = (is_query ? q_out : k_out) + (token * num_own_heads + own_head) * p.head_dim;

    float first[PAIRS], second[PAIRS];
    float sum = 0.0f;
    for (int i = 0; i < PAIRS; i++) {
      int pair = i * kSimdWidth + lane;
      if (pair < num_pairs) {
        DimPair dims = dims_of_pair(pair, p.rotated_pairs, p.traditional);
        first[i] = float(from[dims.first * strides.dim]);
        second[i] = float(from[dims.second * strides.dim]);
        sum += first[i] * first[i] + second[i] * second[i];
      }
    }
    if (p.has_norm) {
      float factor = metal::precise::rsqrt(metal::simd_sum(sum) / p.head_dim + p.epsilon);
      const device T* weight = is_query ? q_weight : k_weight;
      int64_t stride = is_query ? p.q_weight : p.k_weight;
      for (int i = 0; i < PAIRS; i++) {
        int pair = i * kSimdWidth + lane;
        if (pair < num_pairs) {
          DimPair dims = dims_of_pair(pair, p.rotated_pairs, p.traditional);
          first[i] = float(T(float(weight[dims.first * stride]) * float(T(first[i] * factor))));
          second[i] = float(T(float(weight[dims.second * stride]) * float(T(second[i] * factor))));
        }
      }
    }
    for (int i = 0; i < PAIRS; i++) {
      int pair = i * kSimdWidth + lane;
      if (pair < num_pairs) {
        DimPair dims = dims_of_pair(pair, p.rotated_pairs, p.traditional);
        bool rotates = pair < p.rotated_pairs;
        to[dims.first] = T(rotates ? first[i] * cosines[i] - second[i] * sines[i] : first[i]);
        to[dims.second] = T(rotates ? first[i] * sines[i] + second[i] * cosines[i] : second[i]);
      }
    }
  }
}
