// From memory of the host that is staged to memory of the GPU, in the order of the encoder's stream.
#pragma once

#include <mlx/backend/cuda/device.h>

#include "cuda/csrc/staging.h"

namespace pomona::cuda {

namespace mx = mlx::core;

// Fills `to`, which has as many bytes: whole words of 4. `staged` may be dropped meanwhile.
void copy_staged(mx::cu::CommandEncoder& encoder, Staged& staged, const mx::array& to);

// And the first words of `drawn` with those of `newest`, as many as both have.
void copy_staged(
    mx::cu::CommandEncoder& encoder,
    Staged& staged,
    const mx::array& to,
    const mx::array& newest,
    const mx::array& drawn);

} // namespace pomona::cuda
