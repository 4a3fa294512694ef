#include "sgemm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "parallel.h"

namespace pomona::blas {
namespace {

using Index = std::ptrdiff_t;

// Part of the result's bits: where each chain of multiply-adds is cut. A strip of b this deep fits
// the first-level cache.
constexpr Index kDepth = 512;
// Rows of a packed at once; with kDepth it fits the second-level cache.
constexpr Index kRows = 384;
// Columns of c in one task; and of few rows, which take less time with each.
constexpr Index kColumns = 64;
constexpr Index kMostColumns = 256;
// Columns of c in registers.
constexpr Index kStrip = 8;
// Multiply-adds, with at least 16 rows counted, below which a second thread costs more than it does.
constexpr Index kParallelWork = 1 << 20;

typedef float Vector16 __attribute__((vector_size(64)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector4 __attribute__((vector_size(16)));

constexpr Index divide_up(Index a, Index b) {
  return (a + b - 1) / b;
}

// a's rows [first, first + rows) as panels of `width` rows, [depth block][panel][k][row], padded
// with zeros.
struct Packed {
  const float* data;
  Index rows;
  Index width;
  Index depth;

  Index panels() const {
    return divide_up(rows, width);
  }
  const float* panel(Index index, Index k0, Index kc) const {
    return data + k0 * panels() * width + index * kc * width;
  }
};

// What one task computes: some panels times some columns.
struct Block {
  Packed a;
  Index first_panel, last_panel;
  Matrix b; // one of its strides is 1
  Index first_column, last_column;
  float alpha, beta;
  float* c;
  Index ldc;
};

struct Free {
  void operator()(float* data) const {
    std::free(data);
  }
};

// Memory that a thread reuses; it grows to the largest size asked for.
class Scratch {
 public:
  float* get(Index size) {
    if (size_ < size) {
      data_.reset(static_cast<float*>(std::aligned_alloc(64, divide_up(size, 16) * 64)));
      size_ = size;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<float, Free> data_;
  Index size_ = 0;
};

void pack_panel(
    const Matrix& a, Index first, Index rows, Index width, Index k0, Index kc, float* out) {
  // Few columns at a time: a whole row would walk through more cache lines than there are.
  constexpr Index step = 16;
  for (Index k = 0; k < kc; k += step) {
    const Index end = std::min(k + step, kc);
    for (Index row = 0; row < width; ++row) {
      const float* from = a.data + (first + row) * a.row_stride + k0 * a.column_stride;
      for (Index i = k; i < end; ++i) {
        out[i * width + row] = row < rows ? from[i * a.column_stride] : 0.0f;
      }
    }
  }
}

// Up to kMostColumns columns as strips [strip][k][kStrip]. Read in place they would be one cache line
// in every row, which a power of two between rows makes fall into one set.
const float* pack_columns(const float* b, Index row_stride, Index columns, Index kc) {
  static thread_local Scratch scratch;
  float* out = scratch.get(kMostColumns * kDepth);
  const Index tail = columns % kStrip;
  for (Index k = 0; k < kc; ++k) {
    const float* from = b + k * row_stride;
    float* to = out + k * kStrip;
    for (Index column = 0; column < columns - tail; column += kStrip) {
      std::memcpy(to + column * kc, from + column, kStrip * sizeof(float));
    }
    for (Index column = columns - tail; column < columns; ++column) {
      to[(columns - tail) * kc + column % kStrip] = from[column];
    }
  }
  return out;
}

// A strip of `Columns` columns times `Panels` panels, over `kc` of the inner dimension. Either b is
// `Transposed`, its inner dimension contiguous, or it is a strip of kStrip packed columns.
template <typename Vector, int Panels, int Columns, bool Transposed>
[[gnu::always_inline]] inline void
multiply(
    const float* a,
    Index panel_stride,
    const float* b,
    Index ldb,
    Index kc,
    bool prefetch,
    Vector* out) {
  constexpr Index width = sizeof(Vector) / sizeof(float);
  Vector sum[Columns][Panels] = {};
  for (Index k0 = 0; k0 < kc; k0 += 16) {
    if (Transposed && prefetch) {
      for (int j = 0; j < Columns; ++j) {
        __builtin_prefetch(b + (j + kStrip) * ldb + k0);
      }
    }
    const Index end = std::min<Index>(k0 + 16, kc);
    for (Index k = k0; k < end; ++k) {
      Vector rows[Panels];
      for (int p = 0; p < Panels; ++p) {
        rows[p] = *reinterpret_cast<const Vector*>(a + p * panel_stride + k * width);
      }
      for (int j = 0; j < Columns; ++j) {
        const float scalar = Transposed ? b[j * ldb + k] : b[k * kStrip + j];
        for (int p = 0; p < Panels; ++p) {
          sum[j][p] += rows[p] * scalar;
        }
      }
    }
  }
  for (int j = 0; j < Columns; ++j) {
    for (int p = 0; p < Panels; ++p) {
      out[j * Panels + p] = sum[j][p];
    }
  }
}

template <typename Vector, int Panels, int Columns, bool Transposed>
[[gnu::always_inline]] inline void
tile(const Block& block, const float* b, Index panel, Index column, Index k0, Index kc) {
  constexpr Index width = sizeof(Vector) / sizeof(float);
  Vector out[Columns * Panels];
  multiply<Vector, Panels, Columns, Transposed>(
      block.a.panel(panel, k0, kc),
      kc * width,
      b,
      block.b.column_stride,
      kc,
      panel == block.first_panel && column + Columns + kStrip <= block.last_column,
      out);
  const Index first = panel * width;
  const Index rows = std::min<Index>(Panels * width, block.a.rows - first);
  for (Index row = 0; row < rows; ++row) {
    const float* value = reinterpret_cast<const float*>(out) + row;
    float* c = block.c + (first + row) * block.ldc + column;
    for (int j = 0; j < Columns; ++j) {
      const float product = block.alpha * value[j * Panels * width];
      if (k0 > 0) {
        c[j] += product;
      } else {
        c[j] = block.beta == 0.0f ? product : block.beta * c[j] + product;
      }
    }
  }
}

// `b` is the strip from `column` on. `Wide`: columns that fill the registers beside two or three
// panels.
template <typename Vector, int Wide, int Columns, bool Transposed>
[[gnu::always_inline]] inline void
strip(const Block& block, const float* b, Index column, Index k0, Index kc) {
  constexpr int wide = Columns < Wide ? Columns : Wide;
  const Index step = Transposed ? block.b.column_stride : 1;
  for (Index panel = block.first_panel; panel < block.last_panel;) {
    const Index left = block.last_panel - panel;
    if (left == 1) {
      tile<Vector, 1, Columns, Transposed>(block, b, panel, column, k0, kc);
      panel += 1;
    } else if (left == 2 || left == 4) {
      for (int j = 0; j < Columns; j += wide) {
        tile<Vector, 2, wide, Transposed>(block, b + j * step, panel, column + j, k0, kc);
      }
      panel += 2;
    } else {
      for (int j = 0; j < Columns; j += wide) {
        tile<Vector, 3, wide, Transposed>(block, b + j * step, panel, column + j, k0, kc);
      }
      panel += 3;
    }
  }
}

template <typename Vector, int Wide, bool Transposed>
[[gnu::always_inline]] inline void multiply_block(const Block& block) {
  const Index columns = block.last_column - block.first_column;
  for (Index k0 = 0; k0 < block.a.depth; k0 += kDepth) {
    const Index kc = std::min(kDepth, block.a.depth - k0);
    const float* b = block.b.data + k0 * block.b.row_stride +
        block.first_column * block.b.column_stride;
    if (!Transposed) {
      b = pack_columns(b, block.b.row_stride, columns, kc);
    }
    const Index step = Transposed ? block.b.column_stride : kc;
    Index column = 0;
    for (; column + kStrip <= columns; column += kStrip) {
      strip<Vector, Wide, kStrip, Transposed>(
          block, b + column * step, block.first_column + column, k0, kc);
    }
    for (Index j = 0; column + j < columns; ++j) {
      strip<Vector, Wide, 1, Transposed>(
          block,
          b + column * step + j * (Transposed ? step : 1),
          block.first_column + column + j,
          k0,
          kc);
    }
  }
}

template <typename Vector, int Wide>
[[gnu::always_inline]] inline void multiply_any(const Block& block) {
  if (block.b.row_stride == 1) {
    multiply_block<Vector, Wide, true>(block);
  } else {
    multiply_block<Vector, Wide, false>(block);
  }
}

struct Kernel {
  const char* name;
  Index width;
  void (*run)(const Block& block);
};

#if defined(__x86_64__)
// 32 registers: 24 sums, 3 panels, a scalar. With 16: 12 sums, 3 panels, a scalar.
[[gnu::target("avx512f,fma")]] void run_avx512(const Block& block) {
  multiply_any<Vector16, 8>(block);
}

[[gnu::target("avx2,fma")]] void run_avx2(const Block& block) {
  multiply_any<Vector8, 4>(block);
}

constexpr Kernel kKernels[] = {{"avx512", 16, run_avx512}, {"avx2", 8, run_avx2}};

bool runs_here(const Kernel& kernel) {
  __builtin_cpu_init();
  if (kernel.width == 16) {
    return __builtin_cpu_supports("avx512f");
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#elif defined(__aarch64__)
constexpr Kernel kKernels[] = {{"neon", 4, multiply_any<Vector4, 8>}};

bool runs_here(const Kernel&) {
  return true;
}
#else
constexpr std::array<Kernel, 0> kKernels;

bool runs_here(const Kernel&) {
  return false;
}
#endif

// The one of this name, or the best without a name; null if this processor has none.
const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (runs_here(kernel) && (name == nullptr || std::strcmp(name, kernel.name) == 0)) {
      return &kernel;
    }
  }
  return nullptr;
}

std::atomic<const Kernel*>& current_kernel() {
  static std::atomic<const Kernel*> kernel = find_kernel(nullptr);
  return kernel;
}

} // namespace

const char* sgemm_kernel() {
  const Kernel* kernel = current_kernel();
  return kernel == nullptr ? nullptr : kernel->name;
}

bool set_sgemm_kernel(const char* name) {
  const Kernel* kernel = find_kernel(name);
  if (kernel != nullptr) {
    current_kernel() = kernel;
  }
  return kernel != nullptr;
}

void sgemm(
    Index m,
    Index n,
    Index k,
    float alpha,
    const Matrix& a,
    const Matrix& b,
    float beta,
    float* c,
    Index ldc) {
  const Kernel& kernel = *current_kernel().load(std::memory_order_relaxed);
  const Index width = kernel.width;
  const Index columns = m > 3 * width
      ? kColumns
      : std::clamp(n / (4 * num_threads()) / kStrip * kStrip, kColumns, kMostColumns);
  const bool parallel = std::max<Index>(m, 16) * n * k >= kParallelWork;
  const auto for_each = [&](Index count, const auto& body) {
    if (parallel) {
      return parallel_for(count, body);
    }
    for (Index index = 0; index < count; ++index) {
      body(index);
    }
  };
  // Passes of about equal size, each a whole number of register tiles.
  const Index pass = divide_up(divide_up(m, divide_up(m, kRows)), 3 * width) * 3 * width;
  static thread_local Scratch scratch;
  float* panels = scratch.get(std::min(pass, divide_up(m, width) * width) * k);

  for (Index first = 0; first < m; first += pass) {
    const Packed packed{panels, std::min(pass, m - first), width, k};
    const Index depth_blocks = divide_up(k, kDepth);
    for_each(packed.panels() * depth_blocks, [&](Index index) {
      const Index panel = index / depth_blocks;
      const Index k0 = index % depth_blocks * kDepth;
      const Index kc = std::min(kDepth, k - k0);
      pack_panel(
          a,
          first + panel * width,
          packed.rows - panel * width,
          width,
          k0,
          kc,
          const_cast<float*>(packed.panel(panel, k0, kc)));
    });

    // Few columns are shared out by rows too.
    const Index column_blocks = divide_up(n, columns);
    const Index row_blocks = std::clamp<Index>(
        divide_up(2 * num_threads(), column_blocks), 1, divide_up(packed.panels(), 3));
    const Index panels_per_block = divide_up(divide_up(packed.panels(), row_blocks), 3) * 3;
    for_each(column_blocks * row_blocks, [&](Index index) {
      const Index panel = index % row_blocks * panels_per_block;
      const Index column = index / row_blocks * columns;
      kernel.run(Block{
          packed,
          panel,
          std::min(panel + panels_per_block, packed.panels()),
          b,
          column,
          std::min(column + columns, n),
          alpha,
          beta,
          c + first * ldc,
          ldc});
    });
  }
}

} // namespace pomona::blas
