"""The emulated GPU as a device of the engine: ``LLM(model, device="metal-on-cpu")``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from backend_metal.device import CPU, Device, registered
from tests.metal_on_cpu import host
from tests.support.backend_metal.changed_device import changed

NAME = "metal-on-cpu"


@cache
def path() -> Device:
    """The shipped Metal kernels and dispatch code, on the emulator; everything but attention is
    the CPU's."""
    return changed(
        CPU,
        name=NAME,
        attention="metal",
        operators=host.extension(),
        phases=dict,
    )


@contextmanager
def metal_on_cpu() -> Iterator[Device]:
    """Within it the device ``metal-on-cpu`` can be selected."""
    with registered(path()) as device:
        yield device
