"""Where mlx-lm's code calls ours for activations: a device's kernel, or that of a CPU."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from backend_metal.devices.cpu import activations as on_cpu
from backend_metal.devices.cpu.native_scope import native_applies
from backend_metal.models.layers.fused_rows import current_row_operators

SWIGLU_NAME = "swiglu"
DTYPES = (mx.float16, mx.bfloat16, mx.float32)


class _ActivationSeam:
    """Stands where a model's module calls ``swiglu``; where no kernel applies it is that."""

    def __init__(self, original: Callable[[mx.array, mx.array], mx.array]) -> None:
        self._original = original

    def __call__(self, gate: mx.array, x: mx.array) -> mx.array:
        if gate.shape == x.shape and gate.ndim > 0:
            operators = current_row_operators()
            product = None if operators is None else operators.silu_product
            if product is not None and gate.dtype == x.dtype and gate.dtype in DTYPES:
                return product(gate, x)
            if native_applies(gate, x):
                return on_cpu.swiglu(gate, x)
        return self._original(gate, x)


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
