// Inputs as a kernel reads them. Operators that put mx::contiguous around each of theirs would make
// every graph several times as large, and building it is what one user alone waits for.
#pragma once

#include <mlx/backend/cpu/encoder.h>
#include <mlx/mlx.h>

namespace pomona {

namespace mx = mlx::core;

// `in`, or a copy of it with contiguous rows that the encoder makes and keeps.
mx::array row_contiguous(const mx::array& in, mx::cpu::CommandEncoder& encoder);

// Such a copy, whatever `in` is.
mx::array packed(const mx::array& in, mx::cpu::CommandEncoder& encoder);

// Memory for `out`: that of `in`, of the same shape and dtype, if nobody else holds it. Comes before
// anything else holds `in`.
void share_or_allocate(const mx::array& in, mx::array& out);

} // namespace pomona
