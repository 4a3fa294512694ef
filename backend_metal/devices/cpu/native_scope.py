"""Where layers of a model may use the native CPU operations in place of MLX's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import mlx.core as mx

_thread = local()


@contextmanager
def native_layers() -> Iterator[None]:
    """Within it, in this thread, the layers that were prepared for it use native operations."""
    _thread.active = mx.default_device() == mx.cpu
    try:
        yield
    finally:
        _thread.active = False


def native_applies(*arrays: mx.array) -> bool:
    """Whether an operation on ``arrays`` should be native: float32, on the CPU, in the scope."""
    if not getattr(_thread, "active", False):
        return False
    # A loop: a generator is slower, and this is asked some hundred times a step.
    for array in arrays:  # noqa: SIM110
        if array.dtype != mx.float32:
            return False
    return True
