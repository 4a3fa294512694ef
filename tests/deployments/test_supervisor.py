"""A launched server that dies is started again, in bounds, and leaves nothing behind."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deployments.launch import supervisor
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.output import ServerOutput
from deployments.launch.server import Server
from deployments.launch.start import DeployError
from deployments.launch.supervisor import MOST_FAILURES, Supervisor

pytestmark = pytest.mark.serve

DEADLINE_S = 60


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Of supervisors, which don't wait. Their signals' handlers are taken back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    found: list[float] = []
    monkeypatch.setattr(Supervisor, "_pause", lambda self, seconds: found.append(seconds))
    yield found
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Dead(Server):
    """A server that has died; of Ray, what is ``gone``."""

    def __init__(self, gone: tuple[str, ...] = ("raylet",), says: tuple[str, ...] = ()) -> None:
        self.gone = list(gone)
        self.ends = 0
        self.interrupts = 0
        self.output = ServerOutput(says, io.StringIO(), verbose=False)
        self.output.start()

    def is_up(self) -> bool:
        return False

    def lost(self) -> list[str]:
        return self.gone

    def interrupt(self) -> None:
        self.interrupts += 1

    def end(self) -> None:
        self.ends += 1


def supervised(*lives: float | Exception | None) -> tuple[int, list[Dead]]:
    """Exit status, and the servers that had ``lives``: seconds of service, or none, or what Serve
    gave them up for. The last life is told to stop."""
    servers: list[Dead] = []

    def start() -> Server:
        servers.append(Dead())
        return servers[-1]

    def follow(server: Server) -> float | None:
        if len(servers) == len(lives):
            os.kill(os.getpid(), signal.SIGTERM)
        life = lives[len(servers) - 1]
        if isinstance(life, Exception):
            raise life
        return life

    status = Supervisor(start, follow).run()
    assert all(server.ends == 1 for server in servers)
    return status, servers


def test_one_that_has_served_starts_again(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    status, servers = supervised(5.0, 7.0)
    assert (status, len(servers), pauses) == (0, 2, [1.0])
    assert caplog.messages == ["Ray has died: its raylet ended. It starts again in 1 s."]
    assert [server.interrupts for server in servers] == [0, 1]


def test_pauses_grow_until_one_has_served_for_long(pauses: list[float]) -> None:
    long = supervisor.STEADY_S
    status, _ = supervised(5.0, None, DeployError("no room"), long, None, 3.0)
    assert (status, pauses) == (0, [1.0, 2.0, 4.0, 1.0, 2.0])


def test_one_that_fails_again_and_again_is_given_up(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    status, servers = supervised(5.0, *(MOST_FAILURES * [None]))
    assert (status, len(servers)) == (1, MOST_FAILURES)
    assert sum(pauses) < 60
    assert caplog.records[-1].getMessage() == "Ray has died: its raylet ended."


@pytest.mark.parametrize(
    ("life", "told"),
    [(None, "Ray has died: its raylet ended."), (DeployError("no room"), "no room")],
)
def test_one_that_never_served_does_not_start_again(
    life: Exception | None, told: str, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    status, servers = supervised(life, 5.0)
    assert (status, len(servers), pauses) == (1, 1, [])
    assert caplog.messages == [told]
    assert caplog.records[0].levelno == logging.ERROR


def test_a_server_that_ends_with_its_ray_running_has_its_last_words_told(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert Supervisor(lambda: Dead((), ("address in use\n",)), lambda server: None).run() == 1
    assert caplog.messages == ["The server has ended by itself: address in use"]


def test_a_pause_ends_with_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {number: signal.getsignal(number) for number in (2, 15, 1)}
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 2.0 * DEADLINE_S)
    began = threading.Event()
    monkeypatch.setattr(supervisor.logger, "error", lambda *_: began.set())
    main = os.getpid()
    stop = threading.Thread(target=lambda: (began.wait(), os.kill(main, signal.SIGINT)))
    stop.start()
    before = time.monotonic()
    assert Supervisor(Dead, lambda server: 1.0).run() == 0
    assert time.monotonic() - before < DEADLINE_S
    stop.join()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One that has started programs with the names of Ray's, and another."""
    for name in ("gcs_server", "raylet", "agent"):
        (tmp_path / name).symlink_to("/bin/sleep")
    started = [f"{tmp_path / name} 3600 &" for name in ("gcs_server", "raylet", "agent")]
    server = Server(
        ["bash", "-c", "\n".join([*started, "wait"])], LiveTerminal(io.StringIO()), verbose=False
    )
    try:
        wait_for(lambda: len(running(tmp_path)) == 3)
        yield server
    finally:
        server.end()


def running(folder: Path) -> dict[str, psutil.Process]:
    """By name."""
    found = {}
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if line and line[0].startswith(f"{folder}/"):
            found[process.name()] = process
    return found


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_server_without_all_of_ray_is_not_up(server: Server, tmp_path: Path, name: str) -> None:
    assert server.is_up()
    running(tmp_path)[name].kill()
    wait_for(lambda: not server.is_up())
    assert server.lost() == [name]


def test_others_may_come_and_go(server: Server, tmp_path: Path) -> None:
    assert server.is_up()
    running(tmp_path)["agent"].kill()
    wait_for(lambda: len(running(tmp_path)) == 2)
    assert server.is_up()


def test_nothing_of_a_server_outlives_it(server: Server, tmp_path: Path) -> None:
    with subprocess.Popen([tmp_path / "agent", "3600"]) as other:
        server.end()
        assert [process.pid for process in running(tmp_path).values()] == [other.pid]
        assert not server.is_up()
        other.kill()
