// Runs the attention of one launch on the pool's threads.
#pragma once

#include "cpu/arguments.h"
#include "cpu/thread_pool.h"

namespace pomona::cpu {

// `arguments.partials` is filled in here. The metadata must have been checked.
void attend(AttentionArguments arguments, ThreadPool& pool);

// Instruction set of the kernels in use: "avx512", "avx2" or "baseline" (SSE2, or NEON on arm64).
const char* instruction_set();
// Raises std::invalid_argument when this machine cannot run it.
void set_instruction_set(const char* name);

} // namespace pomona::cpu
