"""Native activations in the place of mlx-lm's and MLX's, for float32 on the CPU."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from backend_metal import native
from backend_metal.devices.cpu.native_scope import native_applies


def exp(x: mx.array) -> mx.array:
    return native.exponential(x) if native_applies(x) else mx.exp(x)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Of arrays of one shape."""
    return native.swiglu(gate, x) if native_applies(gate, x) else nn.silu(gate) * x
