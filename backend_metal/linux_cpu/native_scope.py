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
    _thread.active = True
    try:
        yield
    finally:
        _thread.active = False


def native_applies(*arrays: mx.array) -> bool:
    """Whether an operation on ``arrays`` should be native: float32, on the CPU, in the scope."""
    return (
        getattr(_thread, "active", False)
        and mx.default_device() == mx.cpu
        and all(array.dtype == mx.float32 for array in arrays)
    )
