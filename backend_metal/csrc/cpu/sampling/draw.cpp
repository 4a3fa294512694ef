#include "cpu/sampling/draw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace pomona::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeast = -std::numeric_limits<float>::max(); // of a token that may come
constexpr int64_t kLanes = 16; // of the widest vector that kernels load
constexpr int64_t kFew = 256; // candidates that are ranked one by one

struct Ranked {
  float logit;
  int32_t id;
  int64_t place; // among the candidates
};

bool ranks_before(const Ranked& a, const Ranked& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Tokens that may be kept. Arrays have room for a vector beyond the last.
struct Candidates {
  int64_t count = 0;
  std::vector<int32_t> ids, weights;
  std::vector<float> logits, z;

  void reserve(int64_t most) {
    ids.resize(most + kLanes);
    weights.resize(most + kLanes);
    logits.resize(most + kLanes);
    z.resize(most + kLanes);
  }

  // Leaves candidate `from` at a place that is not behind it.
  void move(int64_t from, int64_t to) {
    ids[to] = ids[from];
    weights[to] = weights[from];
    logits[to] = logits[from];
    z[to] = z[from];
  }

  template <typename Keep>
  void filter(Keep keep) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
      move(i, kept);
      kept += keep(i);
    }
    count = kept;
  }
};

// A thread's memory for one row at a time.
struct Scratch {
  std::vector<float> logits, maxima, ranked_maxima;
  std::vector<Ranked> ranked;
  Candidates candidates;
};

class RowDraw {
 public:
  RowDraw(const KernelTable& kernels, const DrawArguments& a, int64_t row, Scratch& scratch)
      : kernels_(kernels), options_(a.options[row]), scratch_(scratch) {
    row_ = {adjusted(a, a.logits + row * a.vocab_size), nullptr, a.vocab_size, 0.0f, 0.0f};
    scratch_.maxima.resize((row_.count + kMaximaBlock - 1) / kMaximaBlock);
    row_.largest = kernels_.find_maxima(row_.logits, row_.count, scratch_.maxima.data());
    row_.maxima = scratch_.maxima.data();
    row_.temperature = options_.temperature;
  }

  int32_t draw() {
    // Differences to an infinity are none.
    if (options_.temperature == 0.0f || !std::isfinite(row_.largest)) {
      return first_largest();
    }
    int32_t id = -1;
    if (cuts_top_k() || cuts_top_p() || options_.log_min_p > -kInfinity) {
      find_candidates();
      cut();
      id = draw_among_candidates();
    } else {
      id = kernels_.draw_among_all(row_, options_.key, first_largest());
    }
    return id < 0 ? first_largest() : id;
  }

 private:
  bool cuts_top_k() const {
    return options_.top_k < row_.count;
  }

  bool cuts_top_p() const {
    return options_.top_p < 1.0f;
  }

  const float* adjusted(const DrawArguments& a, const float* logits) {
    bool is_masked = options_.mask_row >= 0, is_penalised = options_.counts_row >= 0;
    if (!is_masked && !is_penalised && options_.first_bias == options_.last_bias) {
      return logits;
    }
    auto& out = scratch_.logits;
    out.resize(a.vocab_size);
    if (is_penalised) {
      Penalties penalties{
          a.counts + options_.counts_row * a.vocab_size,
          options_.repetition,
          options_.presence,
          options_.frequency};
      kernels_.penalise(logits, a.vocab_size, penalties, out.data());
    } else {
      std::copy_n(logits, a.vocab_size, out.data());
    }
    for (int32_t i = options_.first_bias; i < options_.last_bias; i++) {
      out[a.bias_ids[i]] += a.biases[i];
    }
    if (is_masked) {
      leave_allowed(a.masks + options_.mask_row * a.words_per_mask, out);
    }
    return out.data();
  }

  // Minus infinity where the mask has no bit.
  static void leave_allowed(const int32_t* mask, std::vector<float>& logits) {
    int64_t count = logits.size();
    for (int64_t first = 0; first < count; first += 32) {
      auto left_out = ~static_cast<uint32_t>(mask[first / 32]);
      int64_t here = std::min<int64_t>(32, count - first);
      if (left_out == ~0u) {
        std::fill_n(logits.begin() + first, here, -kInfinity);
        continue;
      }
      for (; left_out != 0; left_out &= left_out - 1) {
        int64_t token = first + std::countr_zero(left_out);
        if (token < count) {
          logits[token] = -kInfinity;
        }
      }
    }
  }

  int32_t first_largest() const {
    auto block = std::find(scratch_.maxima.begin(), scratch_.maxima.end(), row_.largest);
    int64_t first = block == scratch_.maxima.end()
        ? 0
        : (block - scratch_.maxima.begin()) * kMaximaBlock;
    auto at = std::find(row_.logits + first, row_.logits + row_.count, row_.largest);
    return at == row_.logits + row_.count ? 0 : static_cast<int32_t>(at - row_.logits);
  }

  // Every token that can be kept has a logit of at least this.
  float least_logit() {
    float least = logit_at(options_.log_min_p);
    if (cuts_top_k()) {
      least = std::max(least, kth_maximum());
    } else if (cuts_top_p() && options_.log_min_p == -kInfinity) {
      total_ = kernels_.sum_weights(row_);
      // Tokens that weigh less weigh, all together, less than what is left out.
      double lightest = double(total_ - target()) / row_.count;
      least = logit_at(static_cast<float>(std::log(std::max(lightest, 0.5) / kWeightOne)));
    }
    return least;
  }

  // Not above a logit that the temperature makes `z`, however that is rounded.
  float logit_at(float z) const {
    float difference = row_.temperature * (z - 1e-3f * (1.0f - z));
    return row_.largest + difference - 1e-5f * std::abs(row_.largest);
  }

  // top_k blocks have a token of at least this.
  float kth_maximum() {
    auto& ranked = scratch_.ranked_maxima;
    auto k = static_cast<size_t>(std::max(options_.top_k, 1));
    if (k > scratch_.maxima.size()) {
      return -kInfinity;
    }
    ranked = scratch_.maxima;
    std::nth_element(ranked.begin(), ranked.begin() + (k - 1), ranked.end(), std::greater<>());
    return ranked[k - 1];
  }

  void find_candidates() {
    auto& c = scratch_.candidates;
    c.reserve(row_.count);
    c.count = kernels_.collect(row_, std::max(least_logit(), kLeast), c.ids.data());
    for (int64_t i = 0; i < c.count; i++) {
      c.logits[i] = row_.logits[c.ids[i]];
    }
    kernels_.weigh(row_, c.logits.data(), c.count, c.z.data(), c.weights.data());
    if (options_.log_min_p > -kInfinity) {
      c.filter([&](int64_t i) { return c.z[i] >= options_.log_min_p; });
    }
  }

  void cut() {
    if (cuts_top_k()) {
      cut_top_k();
    }
    auto& c = scratch_.candidates;
    if (cuts_top_p() && c.count > 0) {
      if (total_ == 0) {
        total_ = kernels_.weigh_from(c.logits.data(), c.weights.data(), c.count, kLeast).weight;
      }
      cut_top_p();
    }
  }

  void cut_top_k() {
    auto& c = scratch_.candidates;
    int64_t k = std::max(options_.top_k, 1);
    if (c.count <= k) {
      return;
    }
    auto& ranked = rank(kLeast, kInfinity);
    std::nth_element(ranked.begin(), ranked.begin() + (k - 1), ranked.end(), ranks_before);
    Ranked last = ranked[k - 1];
    c.filter([&](int64_t i) { return !ranks_before(last, {c.logits[i], c.ids[i], i}); });
  }

  uint64_t target() const {
    auto share = static_cast<uint64_t>(std::ceil(double(total_) * options_.top_p));
    return std::max<uint64_t>(share, 1); // The first token stays, however small top_p is.
  }

  // Keeps candidates while the weight ranked before them is below the target. Halving the range of
  // logits leaves few of which that is not known; halving their ranks finds the last.
  void cut_top_p() {
    auto& c = scratch_.candidates;
    uint64_t wanted = target();
    // Logits from `kept` on weigh less than the target, those from `least` on do not.
    float least = *std::min_element(c.logits.begin(), c.logits.begin() + c.count);
    float kept = std::nextafter(row_.largest, kInfinity);
    Weighed below{total_, c.count}, above{0, 0};
    while (below.count - above.count > kFew) {
      float middle = least + (kept - least) * 0.5f;
      if (!(middle > least && middle < kept)) {
        break; // These are equal.
      }
      auto weighed = kernels_.weigh_from(c.logits.data(), c.weights.data(), c.count, middle);
      if (weighed.weight < wanted) {
        kept = middle;
        above = weighed;
      } else {
        least = middle;
        below = weighed;
      }
    }
    Ranked last = last_kept(rank(least, kept), above.weight, wanted);
    c.filter([&](int64_t i) { return !ranks_before(last, {c.logits[i], c.ids[i], i}); });
  }

  // Candidates with logits from `least` to below `end`.
  std::vector<Ranked>& rank(float least, float end) {
    auto& c = scratch_.candidates;
    auto& ranked = scratch_.ranked;
    ranked.clear();
    for (int64_t i = 0; i < c.count; i++) {
      if (c.logits[i] >= least && c.logits[i] < end) {
        ranked.push_back({c.logits[i], c.ids[i], i});
      }
    }
    return ranked;
  }

  // The last with less weight before it than is wanted: the first is one, the end none.
  Ranked last_kept(std::vector<Ranked>& ranked, uint64_t before, uint64_t wanted) const {
    size_t kept = 0, end = ranked.size();
    while (end - kept > 1) {
      size_t middle = kept + (end - kept) / 2;
      auto at = [&](size_t rank) { return ranked.begin() + rank; };
      std::nth_element(at(kept), at(middle), at(end), ranks_before);
      uint64_t weight = before;
      for (size_t i = kept; i < middle; i++) {
        weight += scratch_.candidates.weights[ranked[i].place];
      }
      if (weight < wanted) {
        before = weight;
        kept = middle;
      } else {
        end = middle;
      }
    }
    return ranked[kept];
  }

  int32_t draw_among_candidates() {
    auto& c = scratch_.candidates;
    return kernels_.draw_among(options_.key, c.ids.data(), c.z.data(), c.count, row_.count);
  }

  const KernelTable& kernels_;
  const DrawOptions options_;
  Scratch& scratch_;
  DrawLogits row_;
  uint64_t total_ = 0;
};

} // namespace

int32_t draw_token(const KernelTable& kernels, const DrawArguments& arguments, int64_t row) {
  static thread_local Scratch scratch;
  return RowDraw(kernels, arguments, row, scratch).draw();
}

} // namespace pomona::cpu
