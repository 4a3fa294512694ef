#include "warpgroup.h"

#include "block.h"

namespace cuda_on_cpu {

namespace {

constexpr int kDepth = 16; // columns of the left operand
constexpr int kRowBytes = 128;

uint32_t field(uint64_t word, int bit) {
  return static_cast<uint32_t>(word >> bit & 0x3fff) * 16;
}

// Swizzled by 128 bytes, groups of eight rows one behind the other.
bool is_panel(uint64_t word) {
  return word >> 62 == 1 && field(word, 32) == 8 * kRowBytes;
}

} // namespace

Panel Panel::of(uint64_t word) {
  return {field(word, 0), field(word, 16)};
}

uint32_t Panel::place(uint32_t offset) const {
  uint32_t at = start + offset;
  return at ^ (at >> 7 & 7) << 4;
}

void Block::fence() {
  threads_[current].is_fenced = true;
}

void Block::start_product(Product product) {
  auto& thread = threads_[current];
  auto lanes = exchange({product.left, product.right}, "start_product");
  for (const auto& words : lanes) {
    if (words[0] != product.left || words[1] != product.right) {
      fail("lanes disagree about a product");
    }
  }
  if (!is_panel(product.right) || !(product.left_words || is_panel(product.left))) {
    fail("a product of what is no panel");
  }
  if (!thread.is_fenced) {
    fail("a product reads what no fence has handed over");
  }
  bool under_way = false;
  for (const auto& group : thread.products) {
    for (const auto& other : group) {
      under_way |= other.sums == product.sums;
    }
  }
  if (!under_way) {
    float* sums = product.sums[0];
    product.before.assign(sums, sums + product.columns / 2);
    std::fill(sums, sums + product.columns / 2, NAN);
  }
  thread.products.back().push_back(std::move(product));
}

void Block::end_products() {
  threads_[current].products.push_back({});
}

void Block::wait_for_products(int latest) {
  auto& groups = threads_[current].products;
  int lane = current % kLanes, warp = current / kLanes % 4;
  auto element = [&](uint32_t place) {
    if (place + 2 > launch_.memory_bytes) {
      fail("a product reads behind shared memory");
    }
    return *reinterpret_cast<const uint16_t*>(shared + place);
  };
  while (static_cast<int>(groups.size()) - 1 > latest) {
    for (const auto& product : groups.front()) {
      float* sums = product.sums[0];
      std::copy(product.before.begin(), product.before.end(), sums);
      float left[2][kDepth];
      const unsigned* words = product.left_words;
      auto lanes = words ? exchange({words[0], words[1], words[2], words[3]}, "product")
                         : exchange({}, "product");
      for (int r = 0; r < 2; r++) {
        int row = lane / 4 + r * 8;
        for (int k = 0; k < kDepth; k++) {
          uint64_t word = lanes[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
          uint16_t bits = word >> (16 * (k % 2));
          if (!words) {
            bits = element(Panel::of(product.left).place((warp * 16 + row) * kRowBytes + k * 2));
          }
          left[r][k] = product.to_float(bits);
        }
      }
      Panel right = Panel::of(product.right);
      for (int column = lane % 4 * 2; column < product.columns; column += column % 2 ? 7 : 1) {
        float* pair = sums + column / 8 * 4 + column % 2;
        if (!product.adds) {
          pair[0] = pair[2] = 0.0f;
        }
        for (int k = 0; k < kDepth; k++) {
          uint32_t offset = product.right_is_rows
              ? column / 64 * right.stride + column % 64 * 2 + k * kRowBytes
              : column * kRowBytes + k * 2;
          float value = product.to_float(element(right.place(offset)));
          pair[0] += left[0][k] * value;
          pair[2] += left[1][k] * value;
        }
      }
    }
    groups.erase(groups.begin());
  }
  // Whoever writes what was read does so after all lanes have read it.
  exchange({}, "wait_for_products");
}

} // namespace cuda_on_cpu
