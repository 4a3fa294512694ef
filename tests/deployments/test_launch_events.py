"""Events of the server's processes: how they are sent, and what of them a terminal shows."""

from __future__ import annotations

import io
import itertools
import logging
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend_metal.models.load import progress
from deployments.launch.events import Events, to_show
from deployments.launch.live_terminal import CLEAR_LINE, LiveTerminal, bar
from deployments.observe.events import EVENTS, EventHandler, event_handler
from deployments.observe.logs import log_request

pytestmark = pytest.mark.serve

GENERATION = {
    "component": "EngineReplica",
    "level": "INFO",
    "message": "generation finished model=demo ...",
    "event": "generation finished",
    "prompt_tokens": 26,
    "cached_tokens": 16,
    "completion_tokens": 41,
    "first_token_s": 0.5,
    "seconds": 2.5,
    "request_id": "my-id",
}


def said(message: str, component: str = "EngineReplica", level: str = "INFO", **more: Any) -> Any:
    return {"component": component, "level": level, "message": message, **more}


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (said("loading demo"), "loading demo"),
        (said("No API key.", "Gateway", "WARNING"), "WARNING Gateway: No API key."),
        (GENERATION, "my-id: 26 tokens in (16 cached), 41 out, first after 0.50 s, 20.0 tokens/s"),
        (
            {**GENERATION, "event": "generation client gone", "completion_tokens": 1},
            "my-id: 26 tokens in (16 cached), 1 out, first after 0.50 s, client gone",
        ),
        (
            {**GENERATION, "event": "generation failed", "completion_tokens": 0},
            "my-id: 26 tokens in (16 cached), 0 out, failed",
        ),
        (said("POST /v1/x 429 model=demo", event="POST /v1/x 429"), "POST /v1/x 429 model=demo"),
        (said("POST /v1/x 200 model=demo", event="POST /v1/x 200"), None),
    ],
)
def test_the_line_of_an_event(event: dict[str, Any], shown: str | None) -> None:
    assert to_show(event) == shown


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    made = logging.Logger("of this test", logging.INFO)
    yield made
    for handler in made.handlers:
        handler.close()


def test_records_arrive_with_their_fields(folder: Path, log: logging.Logger) -> None:
    out = io.StringIO()
    events = Events(folder / "events", LiveTerminal(out))
    log.addHandler(EventHandler(str(events.path), "EngineReplica"))
    log.info("loading %s", "demo")
    log_request(
        log,
        "generation finished",
        prompt_tokens=26,
        cached_tokens=0,
        completion_tokens=0,
        first_token_s=0.0,
        seconds=1.0,
        request_id="my-id",
    )
    log.handlers[0].close()
    events.close()
    assert out.getvalue() == "loading demo\nmy-id: 26 tokens in (0 cached), 0 out\n"


def test_the_drivers_events_are_kept_for_the_supervisor(
    folder: Path, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    events = Events(folder / "events", LiveTerminal(io.StringIO()))
    log.addHandler(EventHandler(str(events.path), "pomona"))
    log.info("", extra={"event": "ready"})
    log.error("no room", extra={"event": "failed"})
    log.info("Ready.")
    log.handlers[0].close()
    events.close()
    assert events.ready_at is not None
    assert (events.failure, events.ray_failed) == ("no room", False)
    assert caplog.messages == ["Ready."]


def test_a_part_of_a_line_is_dropped(folder: Path) -> None:
    out = io.StringIO()
    events = Events(folder / "events", LiveTerminal(out))
    with socket.socket(socket.AF_UNIX) as torn:
        torn.connect(str(events.path))
        torn.sendall(b'{"component": "EngineReplica", "level": "INFO", "message": "a"}\n{"comp')
    events.close()
    assert out.getvalue() == "a\n"


def test_a_launcher_that_reads_nothing_delays_no_engine(folder: Path, log: logging.Logger) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "events"))
        listening.listen()
        log.addHandler(EventHandler(str(folder / "events"), "EngineReplica"))
        for _ in range(3):
            # More than the system's buffer; a wait would be for ever.
            log.info("x" * (1 << 21))
        log.info("loading")
        received = []
        for _ in range(4):
            connection, _ = listening.accept()
            connection.settimeout(60)
            received.append(connection.recv(1 << 22, socket.MSG_PEEK))
            connection.close()
    assert received[-1].endswith(b'"message": "loading"}\n')


def test_only_a_launcher_has_events_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVENTS, raising=False)
    assert event_handler("Gateway") == []
    monkeypatch.setenv(EVENTS, "/tmp/events")
    [handler] = event_handler("Gateway", logging.WARNING)
    assert handler.level == logging.WARNING


@pytest.fixture
def shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Events, io.StringIO, list[float]]]:
    """Events on a screen, and the seconds of a clock that stands still."""
    now = [100.0]
    monkeypatch.setattr("deployments.launch.events.time", SimpleNamespace(monotonic=lambda: now[0]))
    screen = Screen()
    events = Events(folder / "events", LiveTerminal(screen))
    yield events, screen, now
    events.close()


def test_silence_says_what_it_waits_for(
    shown: tuple[Events, io.StringIO, list[float]],
) -> None:
    events, screen, now = shown
    events.take(said("Ray", "pomona", event="phase"))
    now[0] += 4
    events.show_waiting()
    assert screen.getvalue() == ""
    events.take(said("loading demo"))
    now[0] += 4
    events.show_waiting()
    assert screen.getvalue() == "loading demo\n"
    now[0] += 2
    events.show_waiting()
    assert screen.getvalue().endswith("Waiting for Ray  10 s")
    events.take(said("", "pomona", event="ready"))
    now[0] += 60
    before = screen.getvalue()
    events.show_waiting()
    assert screen.getvalue() == before


def loading(done: int, total: int = 2_000_000_000) -> dict[str, Any]:
    """What an engine says that loads weights."""
    said_ = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said_.append(record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(progress.logger, "handlers", [Kept()])
        patched.setattr(progress.logger, "level", logging.INFO)
        seconds = itertools.count(0.0, 2.0)
        patched.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        progress.Progress(total=total, desc="loading weights", disable=True).update(done)
    [record] = said_
    return {"component": "EngineReplica", "level": "INFO", **vars(record)}


def test_a_terminal_has_a_bar_that_grows_and_goes(
    shown: tuple[Events, io.StringIO, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    events, screen, _ = shown
    events.take(loading(500_000_000))
    events.take(loading(1_500_000_000))
    events.take(said("loaded"))
    [nothing, first, second, last] = screen.getvalue().split(CLEAR_LINE)
    assert nothing == ""
    assert first.startswith("loading weights  25% [#")
    assert "] 0.50 of 2.00 GB, 250.0 MB/s, " in first
    assert second.startswith("loading weights  75% [#")
    assert second.count("#") > first.count("#") > 0
    assert max(len(first), len(second)) < 80
    assert last == "loaded\n"


def test_a_download_of_unknown_size_has_no_bar(
    shown: tuple[Events, io.StringIO, list[float]],
) -> None:
    events, screen, _ = shown
    events.take(loading(250_000_000, total=0))
    assert screen.getvalue() == f"{CLEAR_LINE}loading weights  0.25 GB, 125.0 MB/s"


def test_the_launchers_own_lines_take_the_bars_place() -> None:
    screen = Screen()
    terminal = LiveTerminal(screen)
    terminal.show("loading weights", 0.5, "1.00 of 2.00 GB")
    record = logging.LogRecord("pomona", logging.INFO, "", 1, "It goes on.", None, None)
    logging.StreamHandler(terminal).emit(record)
    assert screen.getvalue().rpartition(CLEAR_LINE)[2] == "It goes on.\n"


def test_a_file_has_a_line_now_and_then() -> None:
    out = io.StringIO()
    terminal = LiveTerminal(out)
    for done in ("0.50", "1.00", "1.50"):
        terminal.show("loading weights", 0.5, f"{done} of 2.00 GB")
    assert out.getvalue() == "loading weights: 0.50 of 2.00 GB\n"


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0, 1.01])
def test_a_bar_stays_within_its_line(columns: int, share: float | None) -> None:
    line = bar("loading weights", share, "1.00 of 2.00 GB, 500.0 MB/s, 2 s left", columns)
    assert len(line) < columns
