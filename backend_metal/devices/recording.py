"""Steps that are made once and then repeated: recorded by a device, to launch them whole, or as
graphs of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.native import RepeatedGraph as RepeatedGraph

Ints = npt.NDArray[np.int32]

_thread = local()


@contextmanager
def being_recorded() -> Iterator[None]:
    """Within it, in this thread, graphs are built to be recorded."""
    _thread.active = True
    try:
        yield
    finally:
        _thread.active = False


def is_being_recorded() -> bool:
    """Whether what is built is kept, with all memory that it works in."""
    return getattr(_thread, "active", False)


Forward = Callable[[mx.array, mx.array], mx.array]
"""From a step's integers and the tokens that the step before it drew, both int32, to the array that
it computes."""


class Recording(Protocol):
    def replay(self, ints: Ints, newest: mx.array) -> mx.array:
        """What the forward computes of these, valid until the next replay. Caches are written when
        the device comes to it, behind all that was submitted before. ``newest``: as many as were
        drawn."""
        ...


class Recorder(Protocol):
    def __call__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> Recording:
        """Record ``forward`` for arrays of these lengths. It runs for ``ints`` and ``newest``,
        which may be run again. Raises ``RuntimeError`` where it can't be recorded."""
        ...
