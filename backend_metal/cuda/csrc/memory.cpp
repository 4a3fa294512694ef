#include "cuda/csrc/memory.h"

#include <mlx/backend/common/buffer_cache.h>
#include <mlx/backend/cuda/allocator.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/csrc/errors.h"

namespace pomona::cuda {

namespace {

using mx::cu::CudaBuffer;

constexpr size_t kPage = 1 << 14;

// Of a device's memory, what is kept that nobody uses: what layers of a long step give back while others
// run, which takes the driver longer to map anew than some of them take to run. As much as MLX keeps
// (engine/memory/device_limits.py).
constexpr double kMostKept = 0.05;

size_t most_kept() {
  size_t free_bytes = 0, total = 0;
  check(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
  return static_cast<size_t>(kMostKept * static_cast<double>(total));
}

size_t rounded(size_t bytes) {
  return bytes < kPage ? std::bit_ceil(std::max<size_t>(bytes, 256))
                       : (bytes + kPage - 1) / kPage * kPage;
}

// At the end of the process there may be no CUDA any more, which is no error then.
void free(CudaBuffer* buffer) {
  cuMemFree(reinterpret_cast<CUdeviceptr>(buffer->data));
  delete buffer;
}

bool is_recorded(CUstream stream) {
  CUstreamCaptureStatus status;
  check(cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Of one device. Whoever gives memory back is done with it on the one stream that uses it, so that
// it can be taken again at once. What was given back last is what a recording asks for next: where
// too much is kept, what has been there for longest goes.
class Memory {
 public:
  explicit Memory(int device)
      : device_(device),
        most_kept_(most_kept()),
        kept_(kPage, [](CudaBuffer* buffer) { return buffer->size; }, free) {}

  CudaBuffer* take(size_t bytes, mx::cu::CommandEncoder& encoder) {
    bytes = rounded(bytes);
    if (auto* buffer = take_kept(bytes)) {
      return buffer;
    }
    auto stream = static_cast<cudaStream_t>(encoder.stream());
    if (!has_room(bytes) && !is_recorded(stream)) {
      // What was submitted gives its memory back when it is done.
      encoder.synchronize();
      if (auto* buffer = take_kept(bytes)) {
        return buffer;
      }
      has_room(bytes);
    }
    CUdeviceptr address = 0;
    check(cuMemAllocAsync(&address, bytes, stream), "cuMemAllocAsync");
    std::lock_guard lock(mutex_);
    used_ += bytes;
    return new CudaBuffer{reinterpret_cast<void*>(address), bytes, device_};
  }

  // From now on.
  void limit(size_t more_bytes) {
    std::lock_guard lock(mutex_);
    limit_ = used_ + more_bytes;
  }

  void give_back(CudaBuffer* buffer) {
    std::unique_lock lock(mutex_);
    used_ -= buffer->size;
    // Once the host has read an array, MLX has replaced its memory by shared memory.
    if (buffer->device != device_) {
      lock.unlock();
      free(buffer);
      return;
    }
    kept_.recycle_to_cache(buffer);
    if (kept_.cache_size() > most_kept_) {
      kept_.release_cached_buffers(kept_.cache_size() - most_kept_);
    }
  }

 private:
  CudaBuffer* take_kept(size_t bytes) {
    std::lock_guard lock(mutex_);
    auto* buffer = kept_.reuse_from_cache(bytes);
    used_ += buffer ? buffer->size : 0;
    return buffer;
  }

  // Whether so many bytes more are within the limit, for which it gives up what it must of what is kept.
  bool has_room(size_t bytes) {
    std::lock_guard lock(mutex_);
    size_t wanted = used_ + kept_.cache_size() + bytes;
    if (wanted > limit_) {
      kept_.release_cached_buffers(wanted - limit_);
    }
    return used_ + bytes <= limit_;
  }

  int device_;
  size_t most_kept_;
  size_t used_ = 0; // bytes of what is taken
  size_t limit_ = std::numeric_limits<size_t>::max();
  std::mutex mutex_;
  mx::BufferCache<CudaBuffer> kept_;
};

// Of the host. Whoever reads what is there has waited for the GPU, which is done with it then.
class HostMemory {
 public:
  CudaBuffer* take(size_t bytes) {
    bytes = std::bit_ceil(std::max<size_t>(bytes, 256));
    {
      std::lock_guard lock(mutex_);
      if (auto& kept = kept_[bytes]; !kept.empty()) {
        auto* buffer = kept.back();
        kept.pop_back();
        return buffer;
      }
    }
    void* memory = nullptr;
    check(cuMemHostAlloc(&memory, bytes, 0), "cuMemHostAlloc");
    return new CudaBuffer{memory, bytes, -1}; // -1: the host's as much as the GPU's
  }

  void give_back(CudaBuffer* buffer) {
    std::lock_guard lock(mutex_);
    kept_[buffer->size].push_back(buffer);
  }

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<CudaBuffer*>> kept_;
};

// Never ends: arrays may, after all else.
Memory& memory_of(int device) {
  static std::mutex mutex;
  static auto* memories = new std::map<int, Memory>;
  std::lock_guard lock(mutex);
  return memories->try_emplace(device, device).first->second;
}

} // namespace

void allocate(mx::array& out, mx::cu::CommandEncoder& encoder) {
  auto& memory = memory_of(encoder.device().cuda_device());
  auto* buffer = memory.take(out.nbytes(), encoder);
  out.set_data(mx::allocator::Data(mx::allocator::Buffer(buffer), [&memory](auto given) {
    memory.give_back(static_cast<CudaBuffer*>(given.ptr()));
  }));
}

void limit_memory(size_t more_bytes, mx::Stream stream) {
  auto& encoder = mx::cu::get_command_encoder(stream);
  memory_of(encoder.device().cuda_device()).limit(more_bytes);
}

void allocate_on_host(mx::array& out) {
  static auto* memory = new HostMemory; // never ends, either
  auto* buffer = memory->take(out.nbytes());
  out.set_data(mx::allocator::Data(mx::allocator::Buffer(buffer), [](auto given) {
    memory->give_back(static_cast<CudaBuffer*>(given.ptr()));
  }));
}

} // namespace pomona::cuda
