// Runs the attention of one launch on the pool's threads.
#pragma once

#include "cpu/launch/arguments.h"
#include "cpu/threads/thread_pool.h"

namespace pomona::cpu {

// `arguments.partials` is filled in here. The metadata must have been checked.
void attend(AttentionArguments arguments, ThreadPool& pool);

} // namespace pomona::cpu
