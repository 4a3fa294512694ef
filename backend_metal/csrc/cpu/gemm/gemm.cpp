#include "cpu/gemm/gemm.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "cpu/gemm/kernels/kernels.h"
#include "cpu/gemm/kernels/scratch.h"
#include "cpu/threads/thread_pool.h"

namespace pomona::gemm {
namespace {

// Rows of a packed at once; with kDepth it fits the second-level cache.
constexpr Index kRows = 384;
// Multiply-adds, with at least 16 rows counted, below which a second thread costs more than it does.
constexpr Index kParallelWork = 1 << 20;
// Rows that one task makes integers of.
constexpr Index kRoundedRows = 16;

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

std::atomic<const Kernel*>& current_kernel() {
  static std::atomic<const Kernel*> kernel = find_kernel(nullptr);
  return kernel;
}

// What is the same for every task of a product.
template <typename B>
struct Product {
  Index m, n, k;
  float alpha;
  Matrix a;
  B b;
  float beta;
  float* c;
  Index ldc;

  bool parallel() const {
    return std::max<Index>(m, 16) * n * k >= kParallelWork;
  }

  // body(index) for every index below count, on as many threads as the product is worth.
  template <typename Body>
  void for_each(Index count, const Body& body) const {
    if (parallel()) {
      return cpu::ThreadPool::shared().parallel_for(count, body);
    }
    for (Index index = 0; index < count; ++index) {
      body(index);
    }
  }
};

// Columns in one of about four tasks a thread: so many whole ones that are computed together.
Index columns_of_few_rows(Index n, Index width) {
  const Index threads = cpu::ThreadPool::shared().num_threads();
  return std::max<Index>(1, std::min(n / (4 * threads), kMostColumns) / width) * width;
}

template <typename B, typename Run>
void multiply_few_rows(const Product<B>& p, Index together, const Run& run) {
  static thread_local Scratch scratch;
  const float* a = p.a.data;
  if (p.m > 1 || p.a.column_stride != 1) {
    const Index padded = padded_rows(p.m);
    float* packed = scratch.get(p.k * padded);
    pack_panel(p.a, 0, p.m, padded, 0, p.k, packed);
    a = packed;
  }
  const Index columns = columns_of_few_rows(p.n, together);
  p.for_each(divide_up(p.n, columns), [&](Index index) {
    const Index first = index * columns;
    run(FewRows<B>{
        a,
        p.m,
        p.k,
        p.b,
        first,
        std::min(first + columns, p.n),
        p.alpha,
        p.beta,
        p.c,
        p.ldc});
  });
}

template <typename B, typename Run>
void multiply_many_rows(const Product<B>& p, const Kernel& kernel, const Run& run) {
  const Index width = kernel.width, threads = cpu::ThreadPool::shared().num_threads();
  const Index columns = p.m > 3 * width
      ? kColumns
      : std::clamp(p.n / (4 * threads) / kStrip * kStrip, kColumns, kMostColumns);
  // Passes of about equal size, each a whole number of register tiles.
  const Index pass = divide_up(divide_up(p.m, divide_up(p.m, kRows)), 3 * width) * 3 * width;
  static thread_local Scratch scratch;
  float* panels = scratch.get(std::min(pass, divide_up(p.m, width) * width) * p.k);

  for (Index first = 0; first < p.m; first += pass) {
    const Packed packed{panels, std::min(pass, p.m - first), width, p.k};
    const Index depth_blocks = divide_up(p.k, kDepth);
    p.for_each(packed.panels() * depth_blocks, [&](Index index) {
      const Index panel = index / depth_blocks;
      const Index k0 = index % depth_blocks * kDepth;
      const Index kc = std::min(kDepth, p.k - k0);
      pack_panel(
          p.a,
          first + panel * width,
          packed.rows - panel * width,
          width,
          k0,
          kc,
          const_cast<float*>(packed.panel(panel, k0, kc)));
    });

    // Few columns are shared out by rows too.
    const Index column_blocks = divide_up(p.n, columns);
    const Index row_blocks = std::clamp<Index>(
        divide_up(2 * threads, column_blocks), 1, divide_up(packed.panels(), 3));
    const Index panels_per_block = divide_up(divide_up(packed.panels(), row_blocks), 3) * 3;
    p.for_each(column_blocks * row_blocks, [&](Index index) {
      const Index panel = index % row_blocks * panels_per_block;
      const Index column = index / row_blocks * columns;
      run(Block<B>{
          packed,
          panel,
          std::min(panel + panels_per_block, packed.panels()),
          p.b,
          column,
          std::min(column + columns, p.n),
          p.alpha,
          p.beta,
          p.c + first * p.ldc,
          p.ldc});
    });
  }
}

bool by_integers(const QuantizedMatrix& b) {
  return (b.bits == 4 || b.bits == 8) && b.depth % kChunk == 0;
}

void multiply_rounded(
    Index m, const float* a, const QuantizedMatrix& b, const IntegerKernel& kernel, float* c) {
  static thread_local Scratch integers, scales;
  const Index chunks = b.depth / kChunk;
  const Product<QuantizedMatrix> product{m, b.columns, b.depth, 1.0f, {a, b.depth, 1}, b, 0.0f, c, b.columns};
  const RoundedRows rows{
      reinterpret_cast<int16_t*>(integers.get(divide_up(m * b.depth, 2))),
      scales.get(m * chunks * (1 + kHalves)),
      scales.get(0) + m * chunks};
  product.for_each(divide_up(m, kRoundedRows), [&](Index index) {
    const Index first = index * kRoundedRows;
    kernel.round(
        a + first * b.depth,
        std::min(kRoundedRows, m - first),
        b.depth,
        {rows.integers + first * b.depth,
         rows.scales + first * chunks,
         rows.sums + first * chunks * kHalves});
  });
  const Index threads = cpu::ThreadPool::shared().num_threads();
  const Index columns =
      std::clamp(
      b.columns / (4 * threads) / kTaskColumns * kTaskColumns, kTaskColumns, kMostColumns);
  product.for_each(divide_up(b.columns, columns), [&](Index index) {
    const Index first = index * columns;
    kernel.multiply(
        {{rows.integers, rows.scales, rows.sums},
         m,
         b,
         first,
         std::min(first + columns, b.columns),
         c});
  });
}

} // namespace

const char* kernel_name() {
  const Kernel* kernel = current_kernel();
  return kernel == nullptr ? nullptr : kernel->name;
}

bool set_kernel(const char* name) {
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
  const Product<Matrix> product{m, n, k, alpha, a, b, beta, c, ldc};
  if (m <= kFewRows && b.row_stride == 1) {
    multiply_few_rows(product, kernel.width, kernel.few_rows);
  } else {
    multiply_many_rows(product, kernel, kernel.tiles);
  }
}

void panel_product(Index m, const float* a, const ColumnPanels& b, float* c) {
  if (m == 0) {
    return;
  }
  const Kernel& kernel = *current_kernel().load(std::memory_order_relaxed);
  const Product<ColumnPanels> product{
      m, b.columns, b.depth, 1.0f, {a, b.depth, 1}, b, 0.0f, c, b.columns};
  if (m <= kFewRows) {
    multiply_few_rows(product, kFewPanelColumns, kernel.few_of_panels);
  } else {
    multiply_many_rows(product, kernel, kernel.panel_tiles);
  }
}

void lay_in_panels(const float* matrix, Index columns, Index depth, float* out) {
  cpu::ThreadPool::shared().parallel_for(divide_up(columns, kPanelColumns), [&](Index panel) {
    const Index first = panel * kPanelColumns;
    const Index count = std::min<Index>(kPanelColumns, columns - first);
    float* to = out + first * depth;
    for (Index k = 0; k < depth; ++k) {
      for (Index j = 0; j < count; ++j) {
        to[k * kPanelColumns + j] = matrix[(first + j) * depth + k];
      }
    }
  });
}

void quantized_product(Index m, const float* a, const QuantizedMatrix& b, float* c) {
  if (m == 0) {
    return;
  }
  const Kernel& kernel = *current_kernel().load(std::memory_order_relaxed);
  if (by_integers(b)) {
    return multiply_rounded(m, a, b, kernel.integers[b.bits / 8], c);
  }
  const Unpack unpack = kernel.unpack[b.bits];
  const auto with = [&](const auto& right) {
    return Product<std::remove_cvref_t<decltype(right)>>{
        m, b.columns, b.depth, 1.0f, {a, b.depth, 1}, right, 0.0f, c, b.columns};
  };
  if (m <= kernel.few_unpacked_rows) {
    multiply_few_rows(with(UnpackedColumns{b, unpack}), kernel.width, kernel.few_unpacked);
  } else {
    multiply_many_rows(with(b), kernel, [&](const Block<QuantizedMatrix>& block) {
      kernel.unpacked_tiles(block, unpack);
    });
  }
}

} // namespace pomona::gemm
