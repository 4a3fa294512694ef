// Where the kernel of silu(gate) * up finds its arrays. C++ and CUDA read it.
#pragma once

namespace pomona {

struct SiluProductBuffers {
  const void* gate;
  const void* up;
  void* out;
};

} // namespace pomona
