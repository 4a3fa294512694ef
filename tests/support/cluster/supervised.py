"""A host's script, run again whenever it ends, as launchd and systemd do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

DEADLINE_S = 600
SUPERVISE = 'while :; do "$0"; sleep 1; done'


@dataclass(frozen=True)
class Supervised:
    """A script that runs until ``stop``."""

    supervisor: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, script: Path, home: Path) -> Supervised:
        log = script.with_suffix(".log")
        with log.open("wb") as output:
            supervisor = subprocess.Popen(
                ["sh", "-c", SUPERVISE, str(script)],
                env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(supervisor, log)

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.supervisor.pid).children(recursive=True)

    def process(self, name: str) -> psutil.Process:
        """The one whose program is called ``name``, once it is there."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [one for one in self.processes() if named(one, name)]
            return len(found) == 1

        wait_until(is_there, f"one {name} below {self.log}")
        return found[0]

    def stop(self) -> None:
        """Ends the script as systemd does: its first process is told to, and nothing else."""
        (first,) = (
            child
            for child in psutil.Process(self.supervisor.pid).children()
            if child.name() != "sleep"
        )
        below = self.processes()
        self.supervisor.kill()
        self.supervisor.wait()
        first.terminate()
        wait_until(lambda: not any(map(is_alive, below)), f"the end of {self.log}")


def named(process: psutil.Process, name: str) -> bool:
    try:
        return process.name() == name
    except psutil.NoSuchProcess:
        return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.2)
