// What stands in for the GPU's memory.
#include "cuda/csrc/memory.h"

#include <mlx/allocator.h>

namespace pomona::cuda {

void allocate(mx::array& out, mx::cu::CommandEncoder&) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
}

void allocate_on_host(mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
}

} // namespace pomona::cuda
