// The logits that a row's tokens are drawn by: the model's, of the tokens that a mask leaves, less
// penalties, plus biases. Whoever includes it has `to_float`.
#pragma once

#include <metal_stdlib>

#include "../common/parameters.h"

namespace pomona {

// A count is twice the times that a token has come in the output, and one more if it is in the prompt.
inline float penalised(float logit, int count, DrawOptions o) {
  // Of most tokens, and the quotient costs.
  if (count == 0) {
    return logit;
  }
  float repeated = logit > 0.0f ? logit / o.repetition : logit * o.repetition;
  int times = count >> 1;
  float penalty = (times > 0 ? o.presence : 0.0f) + float(times) * o.frequency;
  return repeated - penalty;
}

// Of a row's biases, whose tokens ascend.
inline float bias_of(int token, const device int* tokens, const device float* biases, int count) {
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (tokens[middle] < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && tokens[low] == token ? biases[low] : 0.0f;
}

// What memory has of a token.
template <typename T>
struct LoadedLogit {
  T logit;
  uint mask; // the word that has the token's bit
  int count;
};

template <typename T>
struct RowLogits {
  using Loaded = LoadedLogit<T>;

  const device T* logits;
  const device uint* mask; // if mask_row
  const device int* counts; // if counts_row
  const device int* bias_tokens;
  const device float* biases;
  int64_t stride; // of logits
  DrawOptions options;

  // Apart from what is made of it: those of several tokens are on their way at once. Of token 0 in place
  // of none.
  LoadedLogit<T> load(int token) const {
    int some = metal::max(token, 0);
    return {
        logits[some * stride],
        options.mask_row >= 0 ? mask[some / 32] : ~0u,
        options.counts_row >= 0 ? counts[some] : 0};
  }

  float value(LoadedLogit<T> loaded, int token) const {
    if (!(loaded.mask >> (token % 32) & 1)) {
      return -INFINITY;
    }
    float logit = penalised(to_float(loaded.logit), loaded.count, options);
    int num_biases = options.last_bias - options.first_bias;
    return num_biases > 0 ? logit + bias_of(token, bias_tokens, biases, num_biases) : logit;
  }
};

template <typename T>
inline RowLogits<T> row_logits(
    const device T* logits,
    const device uint* masks,
    const device int* counts,
    const device int* bias_tokens,
    const device float* biases,
    DrawOptions o,
    int64_t row,
    DrawParameters p) {
  return {
      logits + row * p.row,
      masks + int64_t(metal::max(o.mask_row, 0)) * p.words_per_mask,
      counts + int64_t(metal::max(o.counts_row, 0)) * p.vocab_size,
      bias_tokens + o.first_bias,
      biases + o.first_bias,
      p.token,
      o};
}

// Whether every token may come, by the model's own logit.
inline bool has_own_logits(DrawOptions o) {
  return o.mask_row < 0 && o.counts_row < 0 && o.first_bias >= o.last_bias;
}

inline bool cuts_by_count(DrawOptions o, int vocab_size) {
  return o.top_k < vocab_size;
}

inline bool cuts_by_weight(DrawOptions o) {
  return o.top_p < 1.0f;
}

// Whether tokens are left out by the weight ahead of them, not by their own alone.
inline bool weighs(DrawOptions o, int vocab_size) {
  return o.temperature > 0.0f && (cuts_by_count(o, vocab_size) || cuts_by_weight(o));
}

// Whether some tokens are left out: all of them are ranked then.
inline bool cuts(DrawOptions o, int vocab_size) {
  return weighs(o, vocab_size) || (o.temperature > 0.0f && o.log_min_p > -INFINITY);
}

} // namespace pomona
