"""``python -m ops.cluster.clean STATE DAYS`` keeps what logs take of a host's disk bounded.

Each process of Ray has log files of its own and leaves them behind. With a store their folder is
the same for as long as the cluster lives, so that nothing else ever removes them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from ops.cluster.scripts import HEAD_FOLDER, ROLES_FOLDER

DAY_S = 24 * 3600
# Of what launchd writes for a service; systemd keeps its own.
MAX_LOG_BYTES = 16 * 1024 * 1024


def clean(state: Path, days: float) -> tuple[int, int]:
    """How many files it removed, and their bytes."""
    for log in (state / "log").glob("*.log"):
        shorten(log)
    return remove_ended([state / HEAD_FOLDER, state / ROLES_FOLDER], days)


def shorten(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Past ``max_bytes`` its content moves to another file. The service has it open, for appending,
    so that the file itself has to stay."""
    if log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def remove_ended(folders: Iterable[Path], days: float) -> tuple[int, int]:
    """Logs that nobody has written for ``days`` and nobody has open, since a process may say
    nothing for that long."""
    oldest = time.time() - days * DAY_S
    logs = (path for folder in folders for path in _logs(folder.resolve()))
    old = [path for path in logs if path.stat().st_mtime < oldest]
    held = _open_files() if old else set()
    ended = [path for path in old if str(path) not in held]
    num_bytes = sum(path.stat().st_size for path in ended)
    for path in ended:
        path.unlink()
    return len(ended), num_bytes


def _logs(ray: Path) -> Iterator[Path]:
    for session in ray.glob("session_*"):
        if not session.is_symlink():
            found = (session / "logs").rglob("*")
            yield from (path for path in found if path.is_file() and not path.is_symlink())


def _open_files() -> set[str]:
    """Of all processes that may be looked into, which those of Ray are: they are this user's."""
    held: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            held.update(opened.path for opened in process.open_files())
    return held


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.cluster.clean", description=__doc__)
    parser.add_argument("state", type=Path, help="`state` of the host list")
    parser.add_argument("days", type=float, help="for how long an ended process's logs stay")
    options = parser.parse_args(arguments)
    num_files, num_bytes = clean(options.state, options.days)
    sys.stdout.write(f"removed {num_files} logs of ended processes, {num_bytes} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
