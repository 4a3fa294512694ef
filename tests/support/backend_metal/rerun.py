"""A stand-in for a device that records: it keeps a step's forward and runs it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import numpy as np

from backend_metal.device import CPU, Device, registered
from backend_metal.devices.recording import Forward, Ints
from tests.support.backend_metal.changed_device import changed

DEVICE = "records"


class Rerun:
    def __init__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> None:
        self._forward = forward
        self._num_ints = len(ints)
        self._drawn = np.zeros(max_drawn, np.int32)
        # What a device does to find its memory: caches are written twice.
        self._run(ints, newest)
        self._run(ints, newest)

    def replay(self, ints: Ints, newest: mx.array) -> mx.array:
        return self._run(ints, newest)

    def _run(self, ints: Ints, newest: mx.array) -> mx.array:
        assert len(ints) == self._num_ints
        self._drawn[: newest.size] = np.asarray(newest)
        # Of its own: the next replay writes other arrays while this one may be read.
        result = self._forward(mx.array(ints), mx.array(self._drawn))
        mx.eval(result)
        return result


@contextmanager
def recording_device() -> Iterator[Device]:
    """The CPU, with steps that are recorded. ``engine.attention`` is to be ``auto``."""
    device = changed(CPU, name=DEVICE, recorder=Rerun)
    with registered(device) as found:
        yield found
