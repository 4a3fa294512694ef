"""How much memory MLX may keep: told to it before it loads a model."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from backend_metal.engine.memory.heap import keep_freed

BUFFER_CACHE_FRACTION = 0.05
"""Most of the device's memory that is kept in freed buffers: by MLX, which does it without a limit
where there is a GPU, or by the heap."""

SUBMITTED_FRACTION = 0.3
"""Most of what weights and caches leave of a GPU's memory that MLX may fill with arrays of what is
submitted and not done, and as much again for those of our own kernels, where MLX knows
nothing of them."""
LEAST_SUBMITTED_FRACTION = 0.02
"""Of all of it, where they leave next to nothing: with less MLX would wait at each operation."""


def limit_memory(memory_bytes: int) -> None:
    """Bound what MLX keeps for later of a device with ``memory_bytes``."""
    kept = int(memory_bytes * BUFFER_CACHE_FRACTION)
    own = mx.set_cache_limit(kept)
    if own < kept:
        # Without a GPU MLX keeps little, in arrays that are the heap's.
        mx.set_cache_limit(own)
        keep_freed(kept)


def limit_submitted(
    device: mx.Device, memory_bytes: int, limit_kernels: Callable[[int], None] | None
) -> None:
    """Have the host wait for a GPU before what is submitted fills its memory. Call it once weights
    and caches are there. ``limit_kernels``: the attention path's ``limit_memory``.

    A host that builds steps of many tokens sooner than the device runs them would else take memory
    for all of their layers.
    """
    if device.type == mx.cpu:
        return
    held = mx.get_active_memory()
    left = (memory_bytes - held) * SUBMITTED_FRACTION
    more = int(max(left, memory_bytes * LEAST_SUBMITTED_FRACTION))
    mx.set_memory_limit(held + more)
    if limit_kernels is not None:
        limit_kernels(more)
