// Runs the recurrent operators of one launch on the pool's threads. Slots and bounds must have been
// checked.
#pragma once

#include "cpu/launch/recurrent_arguments.h"
#include "cpu/threads/thread_pool.h"

namespace pomona::cpu {

void causal_conv(const ConvArguments& arguments, ThreadPool& pool);
void linear_attention(const LinearAttentionArguments& arguments, ThreadPool& pool);

} // namespace pomona::cpu
