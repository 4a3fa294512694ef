// Copies and events of a stream happen when the stand-in for MLX's encoder comes to them, as on a GPU,
// not when they are asked for.
#include "driver.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda/csrc/errors.h"

struct cuda_on_cpu::Event {
  std::mutex mutex;
  int num_due = 0; // times that it was recorded and the stream has not come to
};

namespace {

std::atomic<size_t> num_allocations = 0;

void add(CUstream stream, const char* name, std::function<void()> run) {
  auto& encoder = *reinterpret_cast<mlx::core::cu::CommandEncoder*>(stream);
  encoder.nodes.push_back({name, {}, {}, false, 0, std::move(run)});
}

} // namespace

size_t cuda_on_cpu::num_host_allocations() {
  return num_allocations;
}

CUresult cuMemHostAlloc(void** memory, size_t num_bytes, unsigned) {
  *memory = std::malloc(num_bytes);
  num_allocations++;
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = new cuda_on_cpu::Event;
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  std::lock_guard lock(event->mutex);
  return event->num_due == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  {
    std::lock_guard lock(event->mutex);
    event->num_due++;
  }
  add(stream, "event", [event] {
    std::lock_guard lock(event->mutex);
    event->num_due--;
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t num_bytes, CUstream stream) {
  add(stream, "copy", [to, from, num_bytes] {
    std::memcpy(reinterpret_cast<void*>(to), from, num_bytes);
  });
  return CUDA_SUCCESS;
}

void pomona::cuda::check(CUresult, const char*) {}
