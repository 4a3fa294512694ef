"""Weights and caches stay resident on a Mac's GPU: Metal releases buffers that are idle for about a
second, and takes as long as reading them to have them back."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence
from typing import IO, Literal

import mlx.core as mx

from backend_metal.engine.memory.kv_blocks import GIB

logger = logging.getLogger(__name__)

HEAP_BYTES = 2**20
"""MLX has arrays below ``HEAP_ARRAY_BYTES`` in one buffer of this size, and wires it, too."""
HEAP_ARRAY_BYTES = 256


def working_set(device: mx.Device) -> int | None:
    """Bytes that the system recommends at most; None: no Mac's GPU."""
    most = mx.device_info(device).get("max_recommended_working_set_size")
    return None if most is None else int(most)


def wire(
    device: mx.Device, wanted: Literal["auto", "off"] | float, arrays: Sequence[mx.array]
) -> None:
    """Have macOS keep ``arrays``, or ``wanted`` GiB of them, resident on ``device``. Call it while
    they alone are alive.

    A larger limit would have buffers that come and go wired, which makes macOS 26 panic within
    minutes (https://github.com/ml-explore/mlx/issues/3186); with a smaller one MLX may leave out
    any of the weights. Other devices report no working set, and wire nothing. Raises ``ValueError``
    for more than the system recommends.
    """
    most = working_set(device)
    if most is None:
        return
    if wanted == "off":
        logger.info("no memory is wired: engine.wired_memory is off")
        return
    mx.clear_cache()
    held = held_bytes(arrays)
    limit = min(held, most) if wanted == "auto" else int(wanted * GIB)
    if limit > most:
        raise ValueError(
            f"engine.wired_memory must be at most {most / GIB:.1f} GiB, the working set that macOS "
            f"recommends, not {limit / GIB:.1f}"
        )
    mx.set_wired_limit(limit)
    logger.info(
        "%.2f GiB are wired, of %.2f GiB of weights and caches; macOS recommends at most %.1f GiB",
        limit / GIB,
        held / GIB,
        most / GIB,
    )


def held_bytes(arrays: Sequence[mx.array]) -> int:
    """What MLX holds for all that is alive, in whole pages as Metal allocates it. ``arrays``: where
    those are found that are smaller than a page, which MLX counts by their bytes."""
    page = mmap.PAGESIZE
    small = (page - one.nbytes for one in arrays if HEAP_ARRAY_BYTES <= one.nbytes < page)
    return -(-(mx.get_active_memory() + sum(small)) // page) * page + HEAP_BYTES


class ResidentMemory:
    """Keeps arrays in use while nothing runs: wired memory is given up after seconds, too."""

    def __init__(
        self, arrays: Callable[[], Sequence[mx.array]], share: IO[str] | None = None
    ) -> None:
        """``share``: of the device, for as long as the arrays are there."""
        self.arrays = arrays
        self._share = share

    def touch(self) -> None:
        """Read an element of each array: a GPU makes whole buffers resident."""
        first = [one[(0,) * one.ndim].astype(mx.float32) for one in self.arrays()]
        mx.eval(mx.stack(first))
