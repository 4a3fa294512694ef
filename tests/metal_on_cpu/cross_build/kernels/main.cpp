// Runs kernels on what comes in, and writes what they leave. A request is an operation's number, its
// parameters (8 bytes each) and its arrays, as they lie in memory; see kernel_program.py.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/gemm/gemm.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/table.h"
#include "cpu/attention/scatter.h"

namespace {

using namespace pomona;

void read(void* to, size_t bytes) {
  if (bytes && std::fread(to, bytes, 1, stdin) != 1) {
    std::fprintf(stderr, "the request ends too early\n");
    std::exit(1);
  }
}

void write(const void* from, size_t bytes) {
  if (bytes) {
    std::fwrite(from, bytes, 1, stdout);
  }
}

int64_t integer() {
  int64_t value;
  read(&value, sizeof(value));
  return value;
}

double real() {
  double value;
  read(&value, sizeof(value));
  return value;
}

// Of exactly its size, so that a sanitizer sees a step beyond.
struct Array {
  explicit Array(size_t size) : bytes(size), data(std::malloc(size)) {}
  Array(Array&& other) noexcept : bytes(other.bytes), data(other.data) {
    other.data = nullptr;
  }
  ~Array() {
    std::free(data);
  }

  template <typename T>
  T* as() {
    return static_cast<T*>(data);
  }

  size_t bytes;
  void* data;
};

Array array(size_t bytes) {
  Array result(bytes);
  read(result.data, bytes);
  return result;
}

void attention() {
  cpu::AttentionArguments a{};
  a.type = static_cast<cpu::ElementType>(integer());
  int threads = integer();
  int num_tokens = integer();
  int64_t num_blocks = integer();
  a.num_seqs = integer();
  a.max_blocks_per_seq = integer();
  a.num_q_heads = integer();
  a.num_kv_heads = integer();
  a.head_dim = integer();
  a.head_dim_v = integer();
  a.block_size = integer();
  a.window = integer();
  bool has_sinks = integer();
  a.scale = real();
  a.softcap = real();

  int64_t element = cpu::size_of(a.type);
  auto rows = [&](int heads, int dim) { return array(element * num_tokens * heads * dim); };
  auto cache = [&](int dim) {
    return array(element * num_blocks * a.block_size * a.num_kv_heads * dim);
  };
  Array q = rows(a.num_q_heads, a.head_dim);
  Array k = rows(a.num_kv_heads, a.head_dim), v = rows(a.num_kv_heads, a.head_dim_v);
  Array k_cache = cache(a.head_dim), v_cache = cache(a.head_dim_v);
  Array slots = array(4 * num_tokens);
  Array tables = array(4 * a.num_seqs * a.max_blocks_per_seq);
  Array lengths = array(4 * a.num_seqs), bounds = array(4 * (a.num_seqs + 1));
  Array sinks = array(has_sinks ? 4 * a.num_q_heads : 0);
  Array out(element * num_tokens * a.num_q_heads * a.head_dim_v);

  auto packed = [](Array& rows, int heads, int dim) {
    return cpu::Rows{rows.data, int64_t(heads) * dim, dim};
  };
  auto blocks = [&](Array& cache, int dim) {
    int64_t slot = int64_t(a.num_kv_heads) * dim;
    return cpu::Cache{cache.data, slot * a.block_size, slot, dim};
  };
  a.q = packed(q, a.num_q_heads, a.head_dim);
  a.k = packed(k, a.num_kv_heads, a.head_dim);
  a.v = packed(v, a.num_kv_heads, a.head_dim_v);
  a.k_cache = blocks(k_cache, a.head_dim);
  a.v_cache = blocks(v_cache, a.head_dim_v);
  a.out = packed(out, a.num_q_heads, a.head_dim_v);
  a.slot_mapping = slots.as<int32_t>();
  a.block_tables = tables.as<int32_t>();
  a.seq_lens = lengths.as<int32_t>();
  a.cu_seqlens_q = bounds.as<int32_t>();
  a.sinks = has_sinks ? sinks.as<float>() : nullptr;

  cpu::ScatterArguments writes{};
  writes.type = a.type;
  writes.num_tokens = num_tokens;
  writes.num_kv_heads = a.num_kv_heads;
  writes.head_dim = a.head_dim;
  writes.head_dim_v = a.head_dim_v;
  writes.block_size = a.block_size;
  writes.k = a.k;
  writes.v = a.v;
  writes.k_cache = a.k_cache;
  writes.v_cache = a.v_cache;
  writes.slot_mapping = a.slot_mapping;

  cpu::ThreadPool pool(threads);
  cpu::scatter(writes, pool);
  cpu::attend(a, pool);
  write(out.data, out.bytes);
  write(k_cache.data, k_cache.bytes);
  write(v_cache.data, v_cache.bytes);
}

void product() {
  cpu::ThreadPool::shared().resize(integer());
  int64_t m = integer(), n = integer(), k = integer();
  bool transposed_a = integer(), transposed_b = integer();
  float alpha = real(), beta = real();
  Array a = array(4 * m * k), b = array(4 * k * n), c = array(4 * m * n);
  auto matrix = [](Array& data, bool transposed, int64_t rows, int64_t columns) {
    return transposed ? gemm::Matrix{data.as<float>(), 1, rows}
                      : gemm::Matrix{data.as<float>(), columns, 1};
  };
  gemm::sgemm(
      m,
      n,
      k,
      alpha,
      matrix(a, transposed_a, m, k),
      matrix(b, transposed_b, k, n),
      beta,
      c.as<float>(),
      n);
  write(c.data, c.bytes);
}

void activation() {
  int64_t which = integer(), count = integer();
  const auto& kernels = cpu::kernels_in_use();
  Array a = array(4 * count), b = array(4 * count), out(4 * count);
  if (which == 2) {
    kernels.swiglu(a.as<float>(), b.as<float>(), out.as<float>(), count);
  } else {
    (which == 0 ? kernels.exp : kernels.tanh)(a.as<float>(), out.as<float>(), count);
  }
  write(out.data, out.bytes);
}

} // namespace

// Arguments: the instruction set of the attention kernels, the name of the SGEMM kernel.
int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: kernels INSTRUCTION_SET SGEMM_KERNEL\n");
    return 2;
  }
  cpu::set_instruction_set(argv[1]);
  if (!gemm::set_kernel(argv[2])) {
    std::fprintf(stderr, "no %s here\n", argv[2]);
    return 2;
  }
  int64_t operation;
  while (std::fread(&operation, sizeof(operation), 1, stdin) == 1) {
    void (*operations[])() = {attention, product, activation};
    operations[operation]();
    std::fflush(stdout);
  }
  return 0;
}
