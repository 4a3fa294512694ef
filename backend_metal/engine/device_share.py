"""Engines of one host share its GPU's memory: each says how much it takes, and none takes more than
the others leave."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any


def engines_folder() -> Path:
    return Path.home() / ".pomona" / "engines"


def claim(fraction: float, model: str, folder: Path) -> IO[str]:
    """Take ``fraction`` of the GPU's memory until the file that is returned is closed, at the end
    of this process at the latest. Raises ``ValueError`` naming the engines that have taken it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = list(_taken(folder))
        free = 1.0 - sum(other["fraction"] for other in others)
        if round(free - fraction, 6) < 0:
            told = ", ".join(
                f"{other['model']} (process {other['pid']}) has {other['fraction']:g}"
                for other in others
            )
            raise ValueError(
                f"engine.memory_fraction must be at most {free:.2f} beside the other engines on "
                f"this GPU, not {fraction:g}: {told}"
            )
        own = NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False)  # noqa: SIM115
        fcntl.flock(own, fcntl.LOCK_EX)
        json.dump({"pid": os.getpid(), "model": model, "fraction": fraction}, own)
        own.flush()
        return own


def _taken(folder: Path) -> Iterator[dict[str, Any]]:
    """By engines that run; what others have left is removed."""
    for path in sorted(folder.glob("*.json")):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield json.load(file)
            else:
                path.unlink()
