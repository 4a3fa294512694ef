"""A real `serve run` in processes of its own: own Ray, own ports, own temporary folder."""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import yaml
from filelock import FileLock

from tests.support.e2e import leaks

REPOSITORY = Path(__file__).resolve().parents[3]
SERVE_RUN = (sys.executable, "-m", "ray.serve.scripts", "run")
LAUNCH = (sys.executable, "-P", "-m", "deployments.command", "serve", "--config")
FAKE_BACKEND = "tests.support.deployments.fake_backend:FakeBackend"
RAY_FOLDER = "tmp"
"""In a server's home."""
FIRST_PORT, LAST_PORT = 30000, 32768
"""Above those of Ray's workers, and below those that Linux and macOS hand out."""
NUM_WORKERS = 16
READY_TIMEOUT_S = 600
STOP_TIMEOUT_S = 600


@dataclass(frozen=True)
class ServeProcess:
    """``url`` is where the application is, ``home`` a folder that nothing else uses. What tests
    add to ``secrets`` must be in no log, metric or command line at the end."""

    url: str
    home: Path
    log: Path
    sessions: set[int] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)

    def leaks(self) -> list[str]:
        """Where its secrets are to be read while it runs."""
        places = chain(
            leaks.command_lines(self.ray_processes()),
            leaks.open_pages(self.url),
            leaks.dashboard_pages(self.home),
        )
        return leaks.leaks(self.all_secrets(), places)

    def all_secrets(self) -> set[str]:
        return self.secrets | leaks.kept_secrets(self.home)

    def kill(self) -> None:
        """Returns when no process of it is left."""
        while left := self.ray_processes():
            for pid in left:
                # It may have ended since.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def ray_processes(self) -> dict[int, str]:
        """Process id to command line of everything that was started for this ``home``."""
        ours = {session for marked, session, _ in _processes(self.home).values() if marked}
        # Renamed processes may have lost their environment, and are known by their session.
        self.sessions.update(ours)
        return {
            pid: line
            for pid, (marked, session, line) in _processes(self.home).items()
            if marked or session in self.sessions
        }


def _processes(home: Path) -> dict[int, tuple[bool, int, str]]:
    """Process id to: has ``home`` in its environment, session, command line."""
    mark = f"HOME={home}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            # The name, in parentheses, may hold anything.
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
        except OSError:
            # Ended meanwhile, or another user's.
            continue
        # A process that has ended and waits for its parent has no command line.
        if line:
            found[int(folder.name)] = marked, session, line
    return found


def shipped_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((REPOSITORY / "configs" / name).read_text())
    return config


@contextmanager
def serve_process(
    config: Mapping[str, Any],
    *,
    command: Sequence[str] = SERVE_RUN,
    environment: Mapping[str, str] | None = None,
    stop_signal: signal.Signals = signal.SIGINT,
    folder: Path = REPOSITORY,
) -> Iterator[ServeProcess]:
    """Run ``config`` on a free port until the block ends; every process is gone afterwards.
    ``folder`` is where the command runs."""
    # Ray's socket paths must stay under 108 characters, which pytest's folders exceed.
    home = Path(tempfile.mkdtemp(prefix="pomona-", dir="/tmp"))
    # As homes are: others may enter, and what is to be kept from them is closed itself.
    home.chmod(0o755)
    # The launcher's users may have one in which no socket fits; Ray alone has no remedy.
    temporary = home / ("temporary-" * 12 if command == LAUNCH else RAY_FOLDER)
    temporary.mkdir()
    port = free_port()
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(with_port(config, port)))
    running = ServeProcess(f"http://127.0.0.1:{port}", home, home / "serve.log")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    given = dict(environment or {})
    folders = [leaks.recorder(home), *filter(None, [given.get("PYTHONPATH")])]
    starting = ray_start().acquire()
    with running.log.open("wb") as log:
        process = subprocess.Popen(
            [*command, str(path)],
            cwd=folder,
            env=inherited
            | {
                "HOME": str(home),
                "RAY_TMPDIR": str(home / RAY_FOLDER),
                "TMPDIR": str(temporary),
                "RAY_USAGE_STATS_ENABLED": "0",
            }
            | given
            | {"PYTHONPATH": os.pathsep.join(folders)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # As a script's `&` starts it, unless it is to be stopped as from a terminal; the tests
            # themselves may run behind `&`.
            preexec_fn=_take_interrupts if stop_signal == signal.SIGINT else _ignore_interrupts,
        )
    try:
        with starting:
            _wait_until_ready(running, process)
        yield running
        assert running.leaks() == []
    finally:
        _stop(running, process, stop_signal)
        found = leaks.leaks(running.all_secrets(), leaks.files(home))
        shutil.rmtree(home)
    assert found == []


def with_port(config: Mapping[str, Any], port: int) -> dict[str, Any]:
    """``config`` with clients of its only application served at ``port``."""
    changed = copy.deepcopy(dict(config))
    [application] = changed["applications"]
    application["args"]["gateway"]["port"] = port
    return changed


def ray_start() -> FileLock:
    """Held while a Ray cluster starts: Ray gives up a host that takes 30 seconds, as several that
    start at once may do."""
    return FileLock(Path(tempfile.gettempdir()) / "pomona-tests-ray-start.lock")


def scrape_url(serve: ServeProcess, component: str) -> str:
    """Where the one gateway, or engine, has its metrics."""
    groups = httpx.get(f"{serve.url}/targets", timeout=READY_TIMEOUT_S).json()
    [group] = [one for one in groups if one["labels"]["component"] == component]
    [target] = group["targets"]
    return f"http://{target}{group['labels']['__metrics_path__']}"


def plugin(folder: Path, **backends: str) -> str:
    """A ``PYTHONPATH`` on which ``backends`` (name to `module:Class`) are installed."""
    info = folder / "tests_backends-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-backends\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in backends.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pomona.backends]", *lines, ""]))
    return os.pathsep.join([str(folder), str(REPOSITORY)])


def _wait_until_ready(running: ServeProcess, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{running.url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    told = running.log.read_text(errors="replace")[-8000:]
    raise RuntimeError(f"not ready, exit status {process.poll()}:\n{told}")


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stop(
    running: ServeProcess, process: subprocess.Popen[bytes], stop_signal: signal.Signals
) -> None:
    running.ray_processes()
    process.send_signal(stop_signal)
    try:
        process.wait(STOP_TIMEOUT_S)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while running.ray_processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = running.ray_processes()
    finally:
        process.kill()
        process.wait()
        running.kill()
    assert not left, f"left running after {stop_signal.name}: {left}"


def free_port() -> int:
    [port] = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """All different, and none that a system hands out to who asks for any: until a server listens
    there, somebody else may. Each of pytest's processes has ports of its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(FIRST_PORT + worker % NUM_WORKERS, LAST_PORT, NUM_WORKERS)
    free: list[int] = []
    # Not those of the last run first, which may not all have ended.
    for port in random.sample(own, len(own)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError(f"fewer than {count} ports of {own} are free")
