#include "cuda/csrc/compiler.h"

#include <memory>
#include <stdexcept>

#include "cuda/csrc/nvrtc_api.h"
#include "gpu/shader_source.h"

namespace pomona::cuda {

namespace {

void check(int result, const char* call) {
  if (result != 0) {
    throw std::runtime_error(std::string(call) + " failed: " + nvrtcGetErrorString(result));
  }
}

struct Destroy {
  void operator()(nvrtcProgram program) const {
    nvrtcDestroyProgram(&program);
  }
};
using Program = std::unique_ptr<_nvrtcProgram, Destroy>;

std::string log_of(nvrtcProgram program) {
  size_t size = 0;
  check(nvrtcGetProgramLogSize(program, &size), "nvrtcGetProgramLogSize");
  std::string log(size, '\0');
  check(nvrtcGetProgramLog(program, log.data()), "nvrtcGetProgramLog");
  return log;
}

} // namespace

std::vector<char> compile(const std::string& source, const std::string& architecture) {
  // What the headers of both GPUs include in angle brackets.
  const char* names[] = {"metal_stdlib", "cstdint"};
  auto metal = shader_source("cuda/kernels/metal_stdlib");
  auto integers = shader_source("cuda/kernels/cstdint");
  const char* headers[] = {metal->text.c_str(), integers->text.c_str()};
  nvrtcProgram created = nullptr;
  check(
      nvrtcCreateProgram(&created, source.c_str(), "pomona.cu", 2, headers, names),
      "nvrtcCreateProgram");
  Program program(created);
  std::string target = "--gpu-architecture=" + architecture;
  const char* options[] = {
      target.c_str(), "--std=c++17", "--device-as-default-execution-space"};
  if (nvrtcCompileProgram(program.get(), 3, options) != 0) {
    throw std::runtime_error("a CUDA kernel does not compile: " + log_of(program.get()));
  }
  size_t size = 0;
  check(nvrtcGetCUBINSize(program.get(), &size), "nvrtcGetCUBINSize");
  std::vector<char> code(size);
  check(nvrtcGetCUBIN(program.get(), code.data()), "nvrtcGetCUBIN");
  return code;
}

} // namespace pomona::cuda
