"""Puts ``native.swiglu`` in the place of mlx-lm's ``swiglu``, for float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local

import mlx.core as mx
import mlx.nn as nn

from backend_metal import native

SWIGLU_NAME = "swiglu"

_thread = local()


@contextmanager
def native_activations() -> Iterator[None]:
    """Within it, in this thread, models whose activations were caught use the native ones."""
    _thread.active = True
    try:
        yield
    finally:
        _thread.active = False


class _ActivationSeam:
    """Stands where a model's module calls ``swiglu``; outside ``native_activations`` it is that."""

    def __init__(self, original: Callable[[mx.array, mx.array], mx.array]) -> None:
        self._original = original

    def __call__(self, gate: mx.array, x: mx.array) -> mx.array:
        usable = (
            getattr(_thread, "active", False)
            and mx.default_device() == mx.cpu
            and gate.dtype == x.dtype == mx.float32
            and gate.shape == x.shape
        )
        return native.swiglu(gate, x) if usable else self._original(gate, x)


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
