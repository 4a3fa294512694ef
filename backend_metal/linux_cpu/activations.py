"""Native activations in the place of mlx-lm's and MLX's, for float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from backend_metal import native
from backend_metal.linux_cpu.native_scope import native_applies

SWIGLU_NAME = "swiglu"


class _ActivationSeam:
    """Stands where a model's module calls ``swiglu``; where native does not apply it is that."""

    def __init__(self, original: Callable[[mx.array, mx.array], mx.array]) -> None:
        self._original = original

    def __call__(self, gate: mx.array, x: mx.array) -> mx.array:
        usable = native_applies(gate, x) and gate.shape == x.shape
        return native.swiglu(gate, x) if usable else self._original(gate, x)


def exp(x: mx.array) -> mx.array:
    return native.exponential(x) if native_applies(x) else mx.exp(x)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Of arrays of one shape."""
    return native.swiglu(gate, x) if native_applies(gate, x) else nn.silu(gate) * x


def catch_activations(model: nn.Module) -> None:
    """Route ``swiglu`` through the seam in every Python module that defines a part of ``model``.

    Idempotent.
    """
    for part in model.modules():
        for cls in type(part).__mro__:
            namespace = getattr(cls.__dict__.get("__call__"), "__globals__", {})
            original = namespace.get(SWIGLU_NAME)
            if original is not None and not isinstance(original, _ActivationSeam):
                namespace[SWIGLU_NAME] = _ActivationSeam(original)
