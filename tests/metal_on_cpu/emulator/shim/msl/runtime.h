// What the runtime offers kernels (runtime/kernel_calls.cpp). Pointers travel as integers, because
// address spaces end here.
#pragma once

extern "C" {
uint msl_lane(void);
uint msl_num_lanes(void); // of this simdgroup: the last one may be partial
// 32 slots of 64 bytes for the next meeting of this simdgroup.
ulong msl_lane_slots(void);
// Waits for all lanes; 1 for the last one, which does not wait.
int msl_meet(ulong operation, uint line, ulong file);
void msl_simdgroup_barrier(uint memory, uint line, ulong file);
void msl_threadgroup_barrier(uint memory, uint line, ulong file);
ulong msl_threadgroup_variable(ulong key, ulong size);
void msl_bad_lane(int lane, uint line, ulong file);
}

// Default arguments that name the caller's line: who meets where.
#define MSL_SITE uint line_ = __builtin_LINE(), const MSL_CONSTANT char* file_ = __builtin_FILE()
#define MSL_HERE line_, (ulong)file_
#define MSL_OPERATION(name) (ulong)(const MSL_CONSTANT char*)(name)

// The exchange between lanes is the runtime's, not the kernel's: no race detector looks at it.
#if __has_feature(thread_sanitizer)
#define MSL_UNCHECKED __attribute__((no_sanitize("thread"), noinline)) inline
#else
#define MSL_UNCHECKED MSL_FUNC
#endif
