// Memory for what operators compute.
//
// MLX's own operations take it in an order with their commands; extensions can only ask MLX for
// memory that host and GPU share, which is moved to and fro. So operators have memory of their own,
// kept for the next ones once the GPU is done with it.
#pragma once

#include <mlx/backend/cuda/device.h>

namespace pomona::cuda {

namespace mx = mlx::core;

// Gives `out` memory, uninitialised, on the encoder's device. Where the limit is reached it waits for what
// was submitted, which gives its memory back, unless a step is being recorded.
void allocate(mx::array& out, mx::cu::CommandEncoder& encoder);

// From now on so many bytes more on the device of `stream`, with those that are kept. A limit and no
// promise: more are taken where they are in use already.
void limit_memory(size_t more_bytes, mx::Stream stream);

// The same of the host, where the GPU writes it: for the little that the host reads of every step,
// which memory that moves to and fro would make both wait for.
void allocate_on_host(mx::array& out);

} // namespace pomona::cuda
