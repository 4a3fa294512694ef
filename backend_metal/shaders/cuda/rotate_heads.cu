// The heads of queries and keys, normalised and rotated as shaders/rotate_heads.metal has it. But here a
// lane owns neighbouring pairs of a head's dimensions, and a warp has several heads on their way at once:
// memory's latency is that of tens of KB a multiprocessor. Angles are found while the kernel before
// still runs, where positions were there before.
#include <metal_stdlib>

#include "cuda/rotate_heads_buffers.h"
#include "cuda/rounding.h"
#include "cuda/warp_sum.h"
#include "constants.h"
#include "options.h"
#include "parameters.h"
#include "rotary_pairs.h"

#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

template <int PAIRS>
struct HeadPairs {
  float first[PAIRS] = {};
  float second[PAIRS] = {};
};

// Two neighbouring elements, those of 2 bytes as one word.
template <typename T>
inline void load_two(float& first, float& second, const T* from) {
  const unsigned word = *reinterpret_cast<const unsigned*>(from);
  first = to_float(T{static_cast<unsigned short>(word)});
  second = to_float(T{static_cast<unsigned short>(word >> 16)});
}
inline void load_two(float& first, float& second, const float* from) {
  first = from[0], second = from[1];
}

template <typename T>
inline void store_two(T* to, float first, float second) {
  *reinterpret_cast<unsigned*>(to) = pack<T>(first, second);
}
inline void store_two(float* to, float first, float second) {
  to[0] = first, to[1] = second;
}

// The pairs of a head from `own` on, of which a lane has PAIRS.
template <typename T, int PAIRS>
struct OwnPairs {
  int own;
  int num_pairs;
  int rotated_pairs;
  bool traditional;

  bool has(int i) const {
    return own + i < num_pairs;
  }

  bool rotates(int i) const {
    return own + i < rotated_pairs;
  }

  DimPair dims(int i) const {
    return dims_of_pair(own + i, rotated_pairs, traditional);
  }

  // Whether a pair's dimensions are neighbours, rather than those of neighbouring pairs.
  bool has_neighbours() const {
    return traditional || !rotates(0);
  }

  void load(HeadPairs<PAIRS>& to, const T* from, int64_t stride) const {
    if constexpr (PAIRS % 2 == 0) {
      if (aligned) {
        if (has(0)) {
          load_by_two(to, from);
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      if (has(i)) {
        to.first[i] = to_float(from[dims(i).first * stride]);
        to.second[i] = to_float(from[dims(i).second * stride]);
      }
    }
  }

  void load_by_two(HeadPairs<PAIRS>& to, const T* from) const {
    if (has_neighbours()) {
#pragma unroll
      for (int i = 0; i < PAIRS; i++) {
        load_two(to.first[i], to.second[i], from + 2 * (own + i));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i += 2) {
      load_two(to.first[i], to.first[i + 1], from + own + i);
      load_two(to.second[i], to.second[i + 1], from + rotated_pairs + own + i);
    }
  }

  void store(T* to, const HeadPairs<PAIRS>& from) const {
    if constexpr (PAIRS % 2 == 0) {
      if (aligned) {
        if (has(0)) {
          store_by_two(to, from);
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      if (has(i)) {
        to[dims(i).first] = from_float<T>(from.first[i]);
        to[dims(i).second] = from_float<T>(from.second[i]);
      }
    }
  }

  void store_by_two(T* to, const HeadPairs<PAIRS>& from) const {
    if (has_neighbours()) {
#pragma unroll
      for (int i = 0; i < PAIRS; i++) {
        store_two(to + 2 * (own + i), from.first[i], from.second[i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i += 2) {
      store_two(to + own + i, from.first[i], from.first[i + 1]);
      store_two(to + rotated_pairs + own + i, from.second[i], from.second[i + 1]);
    }
  }
};

// Grid: (runs / kRotarySimdgroups, 1, 1).
template <typename T, int PAIRS>
inline void rotate_heads(const RotateHeadsParameters& p, const RotateHeadsBuffers& b) {
  // Heads on their way at once.
  constexpr int kTogether = PAIRS <= 2 ? 2 : 1;
  let_next_begin();
  if (!reads_ahead) {
    wait_for_kernels_before();
  }
  const int lane = thread_index() % kSimdWidth;
  const int run = block_position().x * kRotarySimdgroups + thread_index() / kSimdWidth;
  const int64_t token = run / p.runs_per_token;
  if (token >= p.num_tokens) {
    if (reads_ahead) {
      wait_for_kernels_before();
    }
    return;
  }
  const OwnPairs<T, PAIRS> pairs{
      lane * PAIRS, p.head_dim / 2, p.rotated_pairs, bool(p.traditional)};
  const int first_head = run % p.runs_per_token * p.heads_per_run;
  const int last = metal::min(first_head + p.heads_per_run, p.num_heads);

  float cosines[PAIRS] = {}, sines[PAIRS] = {};
  const float position = p.scale * float(b.positions[token * p.position]);
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    if (pairs.rotates(i)) {
      const int pair = pairs.own + i;
      const float inverse = p.has_frequencies
          ? 1.0f / b.frequencies[pair * p.frequency]
          : exp2f(-(float(pair) / float(p.rotated_pairs)) * p.log2_base);
      const float angle = position * inverse;
      cosines[i] = cosf(angle);
      sines[i] = sinf(angle);
    }
  }
  if (reads_ahead) {
    wait_for_kernels_before();
  }

  for (int begin = first_head; begin < last; begin += kTogether) {
    HeadPairs<PAIRS> heads[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; i++) {
      const int head = begin + i;
      if (head < last) {
        const bool is_query = head < p.num_q_heads;
        const ElementStrides strides = is_query ? p.q : p.k;
        const T* from = static_cast<const T*>(is_query ? b.q : b.k) + token * strides.token +
            (is_query ? head : head - p.num_q_heads) * strides.head;
        pairs.load(heads[i], from, strides.dim);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; i++) {
      const int head = begin + i;
      if (head >= last) {
        break;
      }
      const bool is_query = head < p.num_q_heads;
      auto& own = heads[i];
      if (p.has_norm) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
          sum += own.first[j] * own.first[j] + own.second[j] * own.second[j];
        }
        const float factor = rsqrtf(warp_sum(sum) / p.head_dim + p.epsilon);
        HeadPairs<PAIRS> weights;
        pairs.load(
            weights,
            static_cast<const T*>(is_query ? b.q_weight : b.k_weight),
            is_query ? p.q_weight : p.k_weight);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
          own.first[j] = rounded_to<T>(weights.first[j] * rounded_to<T>(own.first[j] * factor));
          own.second[j] = rounded_to<T>(weights.second[j] * rounded_to<T>(own.second[j] * factor));
        }
      }
#pragma unroll
      for (int j = 0; j < PAIRS; j++) {
        if (pairs.rotates(j)) {
          const float first = own.first[j], second = own.second[j];
          own.first[j] = first * cosines[j] - second * sines[j];
          own.second[j] = first * sines[j] + second * cosines[j];
        }
      }
      const int own_head = is_query ? head : head - p.num_q_heads;
      const int num_own_heads = is_query ? p.num_q_heads : p.num_heads - p.num_q_heads;
      pairs.store(
          static_cast<T*>(is_query ? b.q_out : b.k_out) +
              (token * num_own_heads + own_head) * p.head_dim,
          own);
    }
  }
}

} // namespace pomona
