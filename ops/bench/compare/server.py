"""A server's processes: started, waited for, weighed and ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from ops.bench.compare.peers import REPOSITORY, Launch

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.2
STOPPED_POLL_S = 0.001
LAST_WORDS = 4000
"""Characters of a log that tell why a server did not start."""


class StartError(RuntimeError):
    """A server ended, or was not ready in time; with the end of what it wrote."""


@dataclass(frozen=True)
class Running:
    pid: int
    started_s: float
    """From its start until it was ready."""

    def memory_bytes(self) -> int:
        """Of its largest process, which has the weights; pages that others share in part."""
        return max(map(_memory_bytes, _tree(self.pid)), default=0)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """None of its processes runs while the block does."""
        processes = _tree(self.pid)
        try:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            for process in processes:
                _wait_until_stopped(process)
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()


@contextmanager
def running(launch: Launch, url: str, log: Path) -> Iterator[Running]:
    """The server of ``launch``, which is to answer at ``url``, with its output in ``log``.

    No process of it is left afterwards. Raises ``StartError``.
    """
    start = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            cwd=REPOSITORY,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the benchmark, which ends its servers one by one.
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, f"{url}{launch.ready}", log)
        yield Running(process.pid, time.perf_counter() - start)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(url, timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(POLL_S)
    status = process.poll()
    why = "was not ready in time" if status is None else f"ended with status {status}"
    raise StartError(f"{why}:\n{log.read_text(errors='replace')[-LAST_WORDS:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Those that outlive their parent are no longer known as its children.
    left = _tree(process.pid)
    # Not an interrupt: what a shell starts with `&` ignores it, and so would its children.
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _wait_until_stopped(process: psutil.Process) -> None:
    # A signal reaches a thread that runs only when that enters the kernel.
    still = psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE
    with suppress(psutil.NoSuchProcess):
        while process.status() not in still:
            time.sleep(STOPPED_POLL_S)


def _memory_bytes(process: psutil.Process) -> int:
    try:
        found = process.memory_full_info()
    except psutil.Error:
        # It has ended since.
        return 0
    # Where the system does not tell the shared pages' part, without them.
    return int(getattr(found, "pss", found.uss))
