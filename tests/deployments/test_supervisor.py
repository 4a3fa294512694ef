"""A launched server that dies is started again, in bounds, and leaves nothing behind."""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from deployments.launch import supervisor
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.server import Server
from deployments.launch.supervisor import MOST_FAILURES, Supervisor
from deployments.observe.events import EVENTS

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


RAYLET = "Ray has died: its raylet ended."


class Dead:
    """A server that has died, ``why``, after it served for ``life`` seconds, or never."""

    def __init__(self, life: float | None, why: str = RAYLET) -> None:
        self.life = life
        self.why = why
        self.ray_died = why == RAYLET
        self.ends = 0
        self.interrupts = 0
        self.events = self

    @property
    def ready_at(self) -> float | None:
        return None if self.life is None else time.monotonic() - self.life

    def is_up(self) -> bool:
        return False

    def interrupt(self) -> None:
        self.interrupts += 1

    def end(self) -> str:
        self.ends += 1
        return self.why


def supervised(*lives: Dead) -> int:
    """The exit status. The last server is told to stop."""
    left = list(lives)

    def is_told_to_stop() -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    lives[-1].is_up = is_told_to_stop  # type: ignore[method-assign]
    status = Supervisor(lambda: left.pop(0), lambda: None).run()  # type: ignore[arg-type, return-value]
    ended = lives[: len(lives) - len(left)]
    assert all(server.ends == 1 for server in ended if isinstance(server, Dead))
    return status


def test_one_that_has_served_starts_again(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Dead(5.0), Dead(7.0)
    assert (supervised(first, second), pauses) == (0, [1.0])
    assert caplog.messages == [f"{RAYLET} It starts again in 1 s."]
    assert [first.interrupts, second.interrupts] == [0, 1]


def test_pauses_grow_until_one_has_served_for_long(pauses: list[float]) -> None:
    long = supervisor.STEADY_S
    lives = [Dead(5.0), Dead(None), Dead(None, "no room"), Dead(long), Dead(None), Dead(3.0)]
    assert (supervised(*lives), pauses) == (0, [1.0, 2.0, 4.0, 1.0, 2.0])


def test_one_that_fails_again_and_again_is_given_up(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    lives = [Dead(5.0), *(Dead(None) for _ in range(MOST_FAILURES))]
    assert supervised(*lives) == 1
    assert [server.ends for server in lives] == [1] * MOST_FAILURES + [0]
    assert sum(pauses) < 60
    assert caplog.records[-1].getMessage() == RAYLET


def test_one_that_never_served_does_not_start_again(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert (supervised(Dead(None, "no room"), Dead(5.0)), pauses) == (1, [])
    assert caplog.messages == ["no room"]
    assert caplog.records[0].levelno == logging.ERROR


def test_a_start_whose_ray_died_is_tried_again(pauses: list[float]) -> None:
    assert (supervised(Dead(None), Dead(None), Dead(5.0)), pauses) == (0, [1.0, 2.0])


def test_a_mistake_that_is_found_while_it_starts_ends_it(pauses: list[float]) -> None:
    server = Dead(None)
    server.is_up = lambda: True  # type: ignore[method-assign]

    def check() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        Supervisor(lambda: server, check).run()  # type: ignore[arg-type, return-value]
    assert server.ends == 1


def test_a_pause_ends_with_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {number: signal.getsignal(number) for number in (2, 15, 1)}
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 2.0 * DEADLINE_S)
    began = threading.Event()
    monkeypatch.setattr(supervisor.logger, "error", lambda *_: began.set())

    def interrupt() -> None:
        began.wait()
        os.kill(os.getpid(), signal.SIGINT)

    stop = threading.Thread(target=interrupt)
    stop.start()
    before = time.monotonic()
    assert Supervisor(lambda: Dead(1.0), lambda: None).run() == 0  # type: ignore[arg-type, return-value]
    assert time.monotonic() - before < DEADLINE_S
    stop.join()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One that has started programs with the names of Ray's, and another."""
    names = ("gcs_server", "raylet", "agent")
    for name in names:
        (tmp_path / name).symlink_to("/bin/sleep")
    with launched([*(f"{tmp_path / name} 3600 &" for name in names), "wait"]) as server:
        wait_for(lambda: len(running(tmp_path)) == 3)
        yield server


@contextmanager
def launched(lines: Sequence[str]) -> Iterator[Server]:
    """A server whose driver is a shell."""
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        terminal = LiveTerminal(io.StringIO())
        command = ["bash", "-c", "\n".join(lines)]
        server = Server(command, Path(folder), terminal, verbose=False)
        try:
            yield server
        finally:
            if server.events.path.exists():
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
    assert server.end() == f"Ray has died: its {name} ended."


AGENT = "The raylet exited immediately because one Ray agent failed, agent_name = dashboard_agent."
SLOW_AGENT = f"""\
[2026-11-29 11:32:47,665 I 1 2] (raylet) main.cc:477: Raylet shutdown already triggered
[2026-11-29 11:32:47,665 E 1 2] (raylet) agent_manager.cc:87: {AGENT}
The raylet fate shares with the agent. This can happen because
"""
TIMED_OUT = "statussetor3576.has_value() Timed out waiting for file /ray/agent_port."
FATAL = f"""\
[2026-11-29 11:32:51,890 C 1 1] (raylet) node_manager.cc:3576:  An unexpected system state has \
occurred. Check failed: {TIMED_OUT}
*** StackTrace Information ***
raylet(+0xff770a) [0x555747c5970a] ray::operator<<()
"""


@pytest.mark.parametrize(
    ("err", "out", "log", "reason"),
    [
        (
            SLOW_AGENT + FATAL,
            SLOW_AGENT,
            "raylet.err",
            TIMED_OUT,
        ),
        ("", SLOW_AGENT, "raylet.out", AGENT),
    ],
    ids=["err", "out"],
)
def test_a_raylet_whose_agent_was_slow_says_so_and_is_started_again(
    pauses: list[float],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    err: str,
    out: str,
    log: str,
    reason: str,
) -> None:
    (tmp_path / "raylet").symlink_to("/bin/bash")
    (tmp_path / "raylet.err").write_text(err)
    (tmp_path / "raylet.out").write_text(out)
    # It reads until it is ended.
    raylet = f"sleep 3600 | {tmp_path}/raylet -c 'read line; exit' raylet --log_dir={tmp_path}"
    with launched([f"{raylet} &", "wait"]) as server:
        wait_for(lambda: running(tmp_path))
        assert server.is_up()
        running(tmp_path)["raylet"].kill()
        # The driver may notice first.
        server.events.take({"event": "Ray failed", "message": "Ray did not start: it timed out."})
        assert supervised(server, Dead(5.0)) == 0  # type: ignore[arg-type]
    told = f"Ray did not start: it timed out. {tmp_path / log} says: {reason}"
    assert caplog.messages == [f"{told} It starts again in 1 s."]
    assert pauses == [1.0]


def test_what_serve_gives_up_is_no_fault_of_ray(server: Server, tmp_path: Path) -> None:
    assert server.is_up()
    server.events.take({"event": "failed", "message": "no room"})
    # Ray ends with its driver.
    running(tmp_path)["raylet"].kill()
    wait_for(lambda: not server.is_up())
    assert (server.end(), server.ray_died) == ("no room", False)


def test_others_may_come_and_go(server: Server, tmp_path: Path) -> None:
    assert server.is_up()
    running(tmp_path)["agent"].kill()
    wait_for(lambda: len(running(tmp_path)) == 2)
    assert server.is_up()


def test_nothing_of_a_server_outlives_it(server: Server, tmp_path: Path) -> None:
    with subprocess.Popen([tmp_path / "agent", "3600"]) as other:
        assert server.end() == "The server has ended by itself: "
        assert [process.pid for process in running(tmp_path).values()] == [other.pid]
        assert not server.is_up()
        other.kill()


def test_a_driver_that_ends_by_itself_has_its_last_words_told() -> None:
    with launched(["echo address in use"]) as server:
        wait_for(lambda: not server.is_up())
        assert server.end() == "The server has ended by itself: address in use"


def test_what_serve_gave_up_for_is_why_it_ended() -> None:
    failed = '{"component": "pomona", "level": "ERROR", "message": "no room", "event": "failed"}'
    script = f"""
import os, socket
end = socket.socket(socket.AF_UNIX)
end.connect(os.environ["{EVENTS}"])
end.sendall({failed!r}.encode() + b"\\n")
"""
    with launched([f"{sys.executable} -c {shlex.quote(script)}"]) as server:
        wait_for(lambda: not server.is_up())
        assert server.end() == "no room"
