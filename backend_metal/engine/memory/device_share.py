"""Engines of one host share its GPU's memory: each says how much it takes, and none takes more than
the others leave."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

PATIENCE_S = 30.0
"""A new engine waits so long for the engine that it replaces to end."""
POLL_S = 0.2


def engines_folder() -> Path:
    return Path.home() / ".pomona" / "engines"


def claim(fraction: float, model: str, folder: Path, *, patience_s: float = PATIENCE_S) -> IO[str]:
    """Take ``fraction`` of the GPU's memory until the file that is returned is closed, at the end
    of this process at the latest. Raises ``ValueError`` naming the engines that still have taken it
    after ``patience_s`` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    give_up_at = time.monotonic() + patience_s
    while True:
        with (folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = list(_taken(folder))
            free = 1.0 - sum(other["fraction"] for other in others)
            if round(free - fraction, 6) >= 0:
                return _take(fraction, model, folder)
        if time.monotonic() >= give_up_at:
            raise ValueError(
                f"engine.memory_fraction must be at most {free:.2f} beside the other engines on "
                f"this GPU, not {fraction:g}: {_told(others)}"
            )
        time.sleep(POLL_S)


def _take(fraction: float, model: str, folder: Path) -> IO[str]:
    own = NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False)  # noqa: SIM115
    fcntl.flock(own, fcntl.LOCK_EX)
    json.dump({"pid": os.getpid(), "model": model, "fraction": fraction}, own)
    own.flush()
    return own


def _told(others: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{other['model']} (process {other['pid']}) has {other['fraction']:g}" for other in others
    )


def _taken(folder: Path) -> Iterator[dict[str, Any]]:
    """The claims of running engines. Files of engines that have ended are removed."""
    for path in sorted(folder.glob("*.json")):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield json.load(file)
            else:
                path.unlink()
