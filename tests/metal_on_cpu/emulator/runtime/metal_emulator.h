// The C interface of a compiled kernel library: what its .so exports.
//
// A library holds the kernels of one source and the runtime that executes them. One GPU thread is
// one fiber, 32 of them are a simdgroup, and the threadgroups of a grid are shared between worker
// threads. Dispatches of one library run one after another; libraries are independent.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  METAL_EMULATOR_MAX_BUFFERS = 31,
  METAL_EMULATOR_THREADGROUP_BYTES = 32768,
  METAL_EMULATOR_MAX_THREADS = 1024,
  METAL_EMULATOR_ERROR_BYTES = 2048,
};

// What a kernel's parameter is bound to; `index` matters for the first two.
enum metal_emulator_parameter_kind {
  METAL_EMULATOR_BUFFER,
  METAL_EMULATOR_THREADGROUP_MEMORY,
  METAL_EMULATOR_THREADGROUP_POSITION_IN_GRID,
  METAL_EMULATOR_THREADGROUPS_PER_GRID,
  METAL_EMULATOR_THREAD_POSITION_IN_THREADGROUP,
  METAL_EMULATOR_THREAD_POSITION_IN_GRID,
  METAL_EMULATOR_THREADS_PER_THREADGROUP,
  METAL_EMULATOR_THREADS_PER_GRID,
  METAL_EMULATOR_THREAD_INDEX_IN_THREADGROUP,
  METAL_EMULATOR_THREAD_INDEX_IN_SIMDGROUP,
  METAL_EMULATOR_SIMDGROUP_INDEX_IN_THREADGROUP,
  METAL_EMULATOR_SIMDGROUPS_PER_THREADGROUP,
  METAL_EMULATOR_THREADS_PER_SIMDGROUP,
  METAL_EMULATOR_QUADGROUP_INDEX_IN_THREADGROUP,
  METAL_EMULATOR_THREAD_INDEX_IN_QUADGROUP,
};

typedef struct {
  int32_t kind;
  int32_t index;
  int32_t writable; // a buffer that the kernel may write
  int32_t reference; // declared with &, not *
  int32_t required; // 1: must be bound; 0: depends on a function constant
  int32_t constant; // the function constant that decides, -1 where it is computed from others
} metal_emulator_parameter;

typedef struct {
  const char* name;
  void (*entry)(uint64_t arguments);
  int32_t num_parameters;
  const metal_emulator_parameter* parameters;
} metal_emulator_kernel;

typedef struct {
  int32_t index;
  const char* name;
  const char* type;
  void* storage;
  unsigned char* defined;
  int32_t size;
} metal_emulator_constant;

int metal_emulator_num_kernels(void);
const metal_emulator_kernel* metal_emulator_get_kernel(int i);
int metal_emulator_num_constants(void);
const metal_emulator_constant* metal_emulator_get_constant(int i);

// Memory of `size` bytes at the end (or start) of pages that lie between 1 GiB of unmapped
// addresses on either side. The rest of its pages is filled with 0xff.
void* metal_emulator_allocate(size_t size, int at_start);
void metal_emulator_free(void* data);

typedef struct {
  void* data; // null: not bound
  size_t size; // bytes from `data` on that the kernel may use
  // Run on a copy in guarded memory and copy back what the kernel may write. Buffers that come
  // from metal_emulator_allocate are guarded already.
  int32_t copy;
  int32_t track; // count the distinct bytes that each threadgroup loads (libraries built for it)
} metal_emulator_buffer;

typedef struct {
  int32_t index;
  uint64_t bits; // the value's bytes, lowest first
} metal_emulator_constant_value;

typedef struct {
  const char* kernel;
  uint32_t grid[3]; // threadgroups; threads if grid_is_threads
  uint32_t threadgroup[3]; // threads
  int32_t grid_is_threads;
  metal_emulator_buffer buffers[METAL_EMULATOR_MAX_BUFFERS];
  size_t threadgroup_memory[METAL_EMULATOR_MAX_BUFFERS]; // bytes, by [[threadgroup(index)]]
  const metal_emulator_constant_value* constants;
  int32_t num_constants;
  // 0: lanes and simdgroups in order; 1: backwards; others: a random schedule drawn from it.
  uint32_t seed;
  int32_t workers;
  // Which side of a copied buffer, and of threadgroup memory, touches unmapped memory.
  int32_t guard_at_start;
} metal_emulator_dispatch;

typedef struct {
  uint64_t threadgroup_barriers; // executed, summed over threadgroups
  uint64_t simdgroup_barriers; // executed, summed over simdgroups
  uint64_t threadgroup_bytes; // most threadgroup memory that one threadgroup used
  uint64_t loaded[METAL_EMULATOR_MAX_BUFFERS]; // tracked buffers: distinct bytes, summed
  uint64_t stored[METAL_EMULATOR_MAX_BUFFERS]; // tracked buffers: bytes, each time that they were
  uint64_t fault_offset; // where in the library the failing instruction is; 0: not a fault
  char error[METAL_EMULATOR_ERROR_BYTES]; // empty if all went well
} metal_emulator_result;

// 0, or 1 with `error` set: it names kernel, threadgroup, thread and, where known, source line.
int metal_emulator_run(const metal_emulator_dispatch* dispatch, metal_emulator_result* result);

#ifdef __cplusplus
}
#endif
