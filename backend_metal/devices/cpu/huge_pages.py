"""Arrays side by side in a larger one, for which there are huge pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mlx.core as mx

from backend_metal import native


def has_huge_pages() -> bool:
    """Whether this system may have them for MLX's default device, which is a CPU."""
    return sys.platform.startswith("linux") and bool(mx.default_device() == mx.Device(mx.cpu))


def lay_together(arrays: Sequence[mx.array]) -> list[mx.array]:
    """Evaluated copies."""
    laid: list[mx.array] = native.lay_together(arrays)
    return laid
