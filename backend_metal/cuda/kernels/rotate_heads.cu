// The heads of queries and keys, normalised and rotated as shaders/attention/rotate_heads.metal has it. But here a
// lane owns neighbouring pairs of a head's dimensions, and copies four elements at once where they are as many; LANES
// have a head, and a warp several beside each other and on their way: memory's latency is that of tens of KB a
// multiprocessor. Angles are found while the kernel before still runs, where positions were there before.
#include <metal_stdlib>

#include "rotate_heads_buffers.h"
#include "rounding.h"
#include "shaders/common/constants.h"
#include "shaders/common/options.h"
#include "shaders/common/parameters.h"
#include "shaders/attention/rotary_pairs.h"

#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

template <int PAIRS>
struct HeadPairs {
  float first[PAIRS] = {};
  float second[PAIRS] = {};
};

template <typename T>
inline void unpack(float* to, unsigned word) {
  to[0] = to_float(T{static_cast<unsigned short>(word)});
  to[1] = to_float(T{static_cast<unsigned short>(word >> 16)});
}

// N neighbouring elements, 2 or 4, from a multiple of their size.
template <int N, typename T>
inline void load_neighbours(float* to, const T* from) {
  if constexpr (N == 2) {
    unpack<T>(to, *reinterpret_cast<const unsigned*>(from));
  } else {
    const auto words = *reinterpret_cast<const unsigned long long*>(from);
    unpack<T>(to, static_cast<unsigned>(words));
    unpack<T>(to + 2, static_cast<unsigned>(words >> 32));
  }
}
template <int N>
inline void load_neighbours(float* to, const float* from) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const auto words = *reinterpret_cast<const unsigned long long*>(from + i);
    to[i] = float_of_bits(static_cast<unsigned>(words));
    to[i + 1] = float_of_bits(static_cast<unsigned>(words >> 32));
  }
}

template <int N, typename T>
inline void store_neighbours(T* to, const float* from) {
  if constexpr (N == 2) {
    *reinterpret_cast<unsigned*>(to) = pack<T>(from[0], from[1]);
  } else {
    *reinterpret_cast<unsigned long long*>(to) = pack<T>(from[0], from[1]) |
        static_cast<unsigned long long>(pack<T>(from[2], from[3])) << 32;
  }
}
template <int N>
inline void store_neighbours(float* to, const float* from) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    to[i] = from[i];
  }
}

// The pairs of a head from `own` on, of which a lane has PAIRS.
template <typename T, int PAIRS>
struct OwnPairs {
  static constexpr int kVector = PAIRS % 4 == 0 ? 4 : 2; // elements of a copy

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
          load_by_vector(to, from);
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

  void load_by_vector(HeadPairs<PAIRS>& to, const T* from) const {
    if (has_neighbours()) {
#pragma unroll
      for (int i = 0; i < PAIRS; i += kVector / 2) {
        float elements[kVector];
        load_neighbours<kVector>(elements, from + 2 * (own + i));
#pragma unroll
        for (int j = 0; j < kVector / 2; j++) {
          to.first[i + j] = elements[2 * j], to.second[i + j] = elements[2 * j + 1];
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i += kVector) {
      load_neighbours<kVector>(to.first + i, from + own + i);
      load_neighbours<kVector>(to.second + i, from + rotated_pairs + own + i);
    }
  }

  void store(T* to, const HeadPairs<PAIRS>& from) const {
    if constexpr (PAIRS % 2 == 0) {
      if (aligned) {
        if (has(0)) {
          store_by_vector(to, from);
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

  void store_by_vector(T* to, const HeadPairs<PAIRS>& from) const {
    if (has_neighbours()) {
#pragma unroll
      for (int i = 0; i < PAIRS; i += kVector / 2) {
        float elements[kVector];
#pragma unroll
        for (int j = 0; j < kVector / 2; j++) {
          elements[2 * j] = from.first[i + j], elements[2 * j + 1] = from.second[i + j];
        }
        store_neighbours<kVector>(to + 2 * (own + i), elements);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i += kVector) {
      store_neighbours<kVector>(to + own + i, from.first + i);
      store_neighbours<kVector>(to + rotated_pairs + own + i, from.second + i);
    }
  }
};

// Over the lanes that have a head.
template <int LANES>
inline float head_sum(float value) {
#pragma unroll
  for (int mask = LANES / 2; mask > 0; mask /= 2) {
    value += shuffle_xor(value, mask);
  }
  return value;
}

// Grid: (runs / kRotarySimdgroups, 1, 1).
template <typename T, int PAIRS, int LANES>
inline void rotate_heads(const RotateHeadsParameters& p, const RotateHeadsBuffers& b) {
  constexpr int kBeside = kSimdWidth / LANES; // heads of a warp
  // Of a lane, on their way at once, where there are registers for two.
  constexpr int kTogether = PAIRS <= 2 || PAIRS == 4 ? 2 : 1;
  let_next_begin();
  if (!reads_ahead) {
    wait_for_kernels_before();
  }
  const int lane = thread_index() % LANES, beside = thread_index() % kSimdWidth / LANES;
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
      sincosf(angle, &sines[i], &cosines[i]);
    }
  }
  if (reads_ahead) {
    wait_for_kernels_before();
  }

  const T* q = static_cast<const T*>(b.q) + token * p.q.token;
  const T* k = static_cast<const T*>(b.k) + token * p.k.token;
  const int num_kv_heads = p.num_heads - p.num_q_heads;
  T* q_out = static_cast<T*>(b.q_out) + token * p.num_q_heads * p.head_dim;
  T* k_out = static_cast<T*>(b.k_out) + token * num_kv_heads * p.head_dim;
  HeadPairs<PAIRS> weights;
  int weighs = -1; // 1: queries
  for (int begin = first_head; begin < last; begin += kTogether * kBeside) {
    HeadPairs<PAIRS> heads[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; i++) {
      const int head = begin + i * kBeside + beside, kv_head = head - p.num_q_heads;
      if (head < last) {
        const bool is_query = kv_head < 0;
        pairs.load(
            heads[i],
            is_query ? q + head * p.q.head : k + kv_head * p.k.head,
            is_query ? p.q.dim : p.k.dim);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; i++) {
      const int head = begin + i * kBeside + beside, kv_head = head - p.num_q_heads;
      const bool is_query = kv_head < 0;
      auto& own = heads[i];
      if (p.has_norm) {
        if (weighs != int(is_query) && head < last) {
          weighs = is_query;
          pairs.load(
              weights,
              static_cast<const T*>(is_query ? b.q_weight : b.k_weight),
              is_query ? p.q_weight : p.k_weight);
        }
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
          sum += own.first[j] * own.first[j] + own.second[j] * own.second[j];
        }
        const float factor = rsqrtf(head_sum<LANES>(sum) / p.head_dim + p.epsilon);
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
      if (head < last) {
        pairs.store(is_query ? q_out + head * p.head_dim : k_out + kv_head * p.head_dim, own);
      }
    }
  }
}

} // namespace pomona
