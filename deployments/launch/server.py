"""`serve run` as a child, with the Ray that it starts: one session of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import psutil

from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.output import ServerOutput

POLL_INTERVAL_S = 0.5
KILL_INTERVAL_S = 0.05
RAY = ("gcs_server", "raylet")
"""Without one of them nothing is replaced any more, and all ends within a minute: or, without a
raylet, never."""


class Server:
    """``command`` is `serve run`'s."""

    def __init__(self, command: Sequence[str], terminal: LiveTerminal, *, verbose: bool) -> None:
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C goes to the whole foreground group, and Serve cuts its shutdown short at a
            # second signal: it gets its own group, and every signal once.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = ServerOutput(self._process.stdout, terminal, verbose=verbose)
        self.output.start()
        self._ray: dict[str, psutil.Process] = {}

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
                        self._ray[name] = child
        return [name for name, process in self._ray.items() if not _lives(process)]

    def wait(self) -> None:
        while self.is_up():
            time.sleep(POLL_INTERVAL_S)

    def end(self) -> None:
        """Kills what is left of it: some of Ray outlives the rest, with its port."""
        while left := list(self._left()):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(KILL_INTERVAL_S)
        self._process.wait()

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
