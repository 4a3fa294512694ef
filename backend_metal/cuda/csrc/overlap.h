// Kernels of a recorded graph that begin while the one before still runs.
#pragma once

#include <cuda.h>

namespace pomona::cuda {

// Lets each of our kernels that follows one kernel alone begin when that one's blocks have all called
// `let_next_begin`, or ended: its own then take what room is left until `wait_for_kernels_before`.
// CUDA Programming Guide, "Programmatic Dependent Launch".
void overlap_kernels(CUgraph graph);

} // namespace pomona::cuda
