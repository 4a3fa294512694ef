// A stand-in for MLX's header: its encoder keeps what it is given, to be run on the CPU.
#pragma once

#include <mlx/mlx.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cuda_on_cpu {
struct Function; // a kernel's library, and the options to run it with
}
using CUfunction = const cuda_on_cpu::Function*;
struct CUstream_st;
using CUstream = CUstream_st*;
using cudaStream_t = CUstream_st*;

namespace mlx::core::cu {

class Device {
 public:
  void make_current() {}
};

Device& device(mlx::core::Device);

class CommandEncoder {
 public:
  struct ConcurrentContext {
    explicit ConcurrentContext(CommandEncoder& encoder) : encoder(encoder) {
      encoder.in_concurrent = true;
    }
    ~ConcurrentContext() {
      encoder.in_concurrent = false;
    }
    ConcurrentContext(const ConcurrentContext&) = delete;
    CommandEncoder& encoder;
  };

  void set_input_array(const array& a);
  void set_output_array(const array& a);
  void add_temporary(const array& a) {
    kept.push_back(a.data_shared_ptr());
  }
  void add_kernel_node_raw(
      CUfunction function, dim3 grid, dim3 block, dim3 cluster, uint32_t memory, void** arguments);
  Device& device() {
    return device_;
  }
  // For the stand-in of CUDA's driver.
  CUstream stream() {
    return reinterpret_cast<CUstream>(this);
  }

  struct Node {
    std::string kernel;
    std::vector<const void*> inputs, outputs; // buffers
    bool is_concurrent;
    int64_t num_blocks; // none where it is no kernel
    std::function<void()> run;
  };
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<array::Data>> kept;
  bool in_concurrent = false;

 private:
  std::vector<const void*> inputs_, outputs_;
  Device device_;
};

CommandEncoder& get_command_encoder(Stream stream);

} // namespace mlx::core::cu
