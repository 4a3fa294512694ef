"""Steps that are made once and then repeated: recorded by a device, to launch them whole, as CUDA's
graphs are; or as graphs of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal import native
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


class CudaRecording:
    def __init__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> None:
        """As a ``Recorder`` does."""
        assert native.cuda is not None, "there is no CUDA here"
        inputs = mx.zeros(len(ints), mx.int32), mx.zeros(max_drawn, mx.int32)
        mx.eval(inputs)
        self._native = native.cuda.Recording(*inputs)
        self._native.load(ints)
        try:
            # Both graphs are built before either runs, since building takes memory: what is
            # recorded must find the very buffers that the rehearsal has left.
            rehearsed, recorded = (
                self._build(forward, newest, records) for records in (False, True)
            )
            mx.synchronize()
            mx.clear_cache()
            mx.eval(rehearsed)
            mx.synchronize()
            del rehearsed  # Its buffer, too, is asked for again.
            mx.eval(recorded)
            mx.synchronize()
        except BaseException:
            self._native.abandon()
            raise

    def _build(self, forward: Forward, newest: mx.array, records: bool) -> mx.array:
        result: mx.array = self._native.leave(
            forward(*self._native.enter(newest, records)), records
        )
        return result

    def replay(self, ints: Ints, newest: mx.array) -> mx.array:
        self._native.load(ints)
        result: mx.array = self._native.replay(newest)
        return result
