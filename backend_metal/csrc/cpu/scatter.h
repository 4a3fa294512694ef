// Copies new keys and values to their slots, and whole blocks to others.
#pragma once

#include "cpu/arguments.h"
#include "cpu/thread_pool.h"

namespace pomona::cpu {

void scatter(const ScatterArguments& arguments, ThreadPool& pool);

// Every source is read before any destination is written.
void copy_blocks(
    const Cache& cache,
    int64_t itemsize,
    int block_size,
    int num_heads,
    int head_dim,
    const int32_t* sources,
    const int32_t* destinations,
    int num_copies);

} // namespace pomona::cpu
