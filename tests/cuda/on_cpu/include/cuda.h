// A stand-in for the header of CUDA's driver, as far as copies from the host go.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mlx/backend/cuda/device.h"

namespace cuda_on_cpu {
struct Event; // whether the stream has come to it
}

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_READY = 600 };
using CUdeviceptr = uintptr_t;
using CUevent = cuda_on_cpu::Event*;
constexpr unsigned CU_EVENT_DISABLE_TIMING = 2;

CUresult cuMemHostAlloc(void** memory, size_t num_bytes, unsigned flags);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventQuery(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t num_bytes, CUstream stream);
