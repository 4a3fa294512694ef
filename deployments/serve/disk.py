"""Start check of a host's disk: most of what fails for want of space does not name it."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

MIB = 1 << 20
FLOOR_BYTES = 256 * MIB
"""For logs, which grow, and what Ray spills. A download says itself what it needs."""
PATIENCE_S = 60.0
POLL_INTERVAL_S = 1.0


class DiskFullError(RuntimeError):
    """A folder that a replica writes to has next to no space left."""


async def wait_for_room(folder: Path, *, patience_s: float = PATIENCE_S) -> None:
    """Returns once ``folder`` has room.

    Serve starts a replica that failed again at once, a few times, and then gives up the deployment,
    on all hosts. A minute's wait each time leaves an operator as many minutes to make room, after
    which the replica starts by itself; Serve's status has the error meanwhile.

    Raises ``DiskFullError`` after ``patience_s`` seconds.
    """
    give_up_at = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            check_free(folder)
            return
        except DiskFullError as error:
            if time.monotonic() >= give_up_at:
                raise
            if not is_told:
                logger.error("The start waits for room: %s", error)
                is_told = True
        await asyncio.sleep(POLL_INTERVAL_S)


def check_free(folder: Path) -> None:
    """Raises ``DiskFullError``."""
    free = psutil.disk_usage(str(folder)).free
    if free < FLOOR_BYTES:
        raise DiskFullError(
            f"the disk of {platform.node()} is full: {folder} has {free // MIB} MiB free, and "
            f"{FLOOR_BYTES // MIB} MiB are needed; delete old sessions there, models that nobody "
            "uses, or set RAY_TMPDIR to a folder on another disk"
        )
