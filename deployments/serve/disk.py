"""Start check of a host's disk: most of what fails for want of space does not name it."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil
import ray

MIB = 1 << 20
FLOOR_BYTES = 256 * MIB
"""For logs, which grow, and what Ray spills. A download says itself what it needs."""


class DiskFullError(RuntimeError):
    """A folder that a replica writes to has next to no space left."""


def check_disk() -> None:
    """Raises ``DiskFullError`` if Ray's folder on this host is short of space."""
    check_free(Path(ray.get_runtime_context().get_temp_dir()))


def check_free(folder: Path) -> None:
    """Raises ``DiskFullError``."""
    free = psutil.disk_usage(str(folder)).free
    if free < FLOOR_BYTES:
        raise DiskFullError(
            f"the disk of {platform.node()} is full: {folder} has {free} bytes free, and "
            f"{FLOOR_BYTES} are needed; delete old sessions there, models that nobody uses, or "
            "set RAY_TMPDIR to a folder on another disk"
        )
