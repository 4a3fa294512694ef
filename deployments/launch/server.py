"""Serve's driver as a child, with the Ray that it starts: one session of processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

from deployments.launch.events import Events
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.serve_status import cause
from deployments.observe.events import EVENTS

KILL_INTERVAL_S = 0.05
RAY = ("gcs_server", "raylet")
"""Without one of them Ray replaces nothing any more, and ends within a minute: or, without a
raylet, never."""
LAST_CHARACTERS = 8192
LOG_FOLDER = "--log_dir="
"""Argument of both."""
ERROR = re.compile(r"^\[.+ [EC] \d+ \d+\] \(\w+\) \S+:\d+: +(.+)", re.MULTILINE)
"""A line of their logs, which says why they end; many more follow a fatal one."""


class Server:
    """``command`` is the driver's. The socket for events is in ``folder``."""

    def __init__(
        self, command: Sequence[str], folder: Path, terminal: LiveTerminal, *, verbose: bool
    ) -> None:
        self.events = Events(folder / "events", terminal)
        self._log = folder / "driver.log"
        with nullcontext(sys.stderr) if verbose else self._log.open("w") as out:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, EVENTS: str(self.events.path)},
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the whole foreground group, and Serve cuts its shutdown short at a
                # second signal: it gets its own group, and every signal once.
                start_new_session=True,
            )
        self._ray: dict[str, psutil.Process] = {}
        self._logs: dict[str, Path] = {}
        """Where each of Ray's processes writes."""
        self.ray_died = False
        """Whether that is why it ended."""

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def is_up(self) -> bool:
        """Whether it runs, and so does all of Ray that was seen to run in it."""
        return self._process.poll() is None and not self.lost()

    def lost(self) -> list[str]:
        """Which of Ray's processes have died."""
        # There are none here if it serves in a cluster that ran already.
        if len(self._ray) < len(RAY):
            # They may have ended since.
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self._process.pid).children():
                    if (name := child.name()) in RAY:
                        for argument in child.cmdline():
                            if argument.startswith(LOG_FOLDER):
                                self._logs[name] = Path(argument.removeprefix(LOG_FOLDER))
                        self._ray[name] = child
        return [name for name, process in self._ray.items() if not _lives(process)]

    def end(self) -> str:
        """Kills what is left of it: some of Ray outlives the rest, with its port. Returns why it
        ended."""
        lost = self.lost()
        while left := list(self._left()):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(KILL_INTERVAL_S)
        self._process.wait()
        self.events.close()
        why = self.events.failure
        self.ray_died = bool(lost) and (why is None or self.events.ray_failed)
        if self.ray_died:
            why = why or f"Ray has died: its {' and '.join(lost)} ended."
            return " ".join([why, *self._reasons(lost)])
        return why or f"The server has ended by itself: {cause(self._last_words())}"

    def _reasons(self, lost: Sequence[str]) -> Iterator[str]:
        """Why each of Ray's processes has ended, as its log says."""
        for name in filter(self._logs.__contains__, lost):
            for log in (self._logs[name] / f"{name}.{end}" for end in ("err", "out")):
                errors = ERROR.findall(log.read_text(errors="replace")) if log.exists() else []
                if errors:
                    reason = errors[-1].rpartition("Check failed: ")[2].strip().rstrip(".")
                    yield f"{log} says: {reason}."
                    break

    def _last_words(self) -> str:
        """The end of the driver's log, or its exit status if the terminal has shown the log."""
        if not self._log.exists():
            return f"status {self._process.returncode}"
        return self._log.read_text(errors="replace")[-LAST_CHARACTERS:]

    def _left(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            # Ended since, or another user's.
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == self._process.pid and _lives(process):
                    yield process


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
