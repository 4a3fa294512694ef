"""The emulated GPU as a device of the engine: ``LLM(model, device="metal-on-cpu")``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import mlx.core as mx

from backend_metal import native
from backend_metal.attention.paths import AttentionPath
from backend_metal.device import Device, registered
from tests.metal_on_cpu import host

NAME = "metal-on-cpu"


@cache
def path() -> AttentionPath:
    """The shipped Metal kernels and dispatch code, on the emulator."""
    operators = host.extension()
    return AttentionPath(
        "metal",
        operators.scatter_paged_attention,
        operators.paged_attention,
        operators.reshape_and_cache,
        native.zeros,
        decode_options={"decodes": True},
        prefill_options={"prefills": True},
        repeats_graphs=True,
    )


@contextmanager
def metal_on_cpu() -> Iterator[Device]:
    """Within it the device ``metal-on-cpu`` can be selected; everything but attention is MLX's
    CPU backend."""
    with registered(Device(NAME, mx.Device(mx.cpu), path())) as device:
        yield device
