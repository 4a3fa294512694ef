// Copies new keys and values to their slots.
#pragma once

#include "cpu/launch/arguments.h"
#include "cpu/threads/thread_pool.h"

namespace pomona::cpu {

void scatter(const ScatterArguments& arguments, ThreadPool& pool);

} // namespace pomona::cpu
