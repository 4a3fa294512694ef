"""Which lines of the server a terminal shows, and how."""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from backend_metal.models import progress
from deployments.launch.live_terminal import CLEAR_LINE, LiveTerminal, bar
from deployments.launch.output import ServerOutput, to_show

ENGINE = "(ServeReplica:pomona:EngineReplica pid=7) "
GATEWAY = "(ServeReplica:pomona:Gateway pid=8, ip=10.0.0.3) "
HEAD = "2026-11-22 19:28:04,026 pomona_EngineReplica mc4kk9mh"
SLOW_START = (
    "Deployment 'EngineReplica' in application 'pomona' has 1 replicas that have taken more than "
    "30s to initialize."
)
GENERATION = (
    "generation {} model=demo prompt_tokens=26 cached_tokens=16 completion_tokens={} "
    "first_token_s=0.5 seconds=2.5 engine_request_id=req-1 request_id=my-id"
)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"{ENGINE}INFO {HEAD} -- loading demo", "loading demo"),
        (f"{ENGINE}INFO {HEAD} some-request-id -- two -- parts", "two -- parts"),
        (f"{GATEWAY}WARNING {HEAD} -- No API key.", "WARNING Gateway: No API key."),
        (
            f"(ServeController pid=9) ERROR {HEAD} -- Exception in Replica",
            "ERROR ServeController: Exception in Replica",
        ),
        (
            f'{ENGINE}{{"levelname": "WARNING", "message": "hot"}}',
            "WARNING EngineReplica: hot",
        ),
        (f'{ENGINE}{{"levelname": "INFO", "message": "loading"}}', "loading"),
        (
            f"{ENGINE}INFO {HEAD} -- {GENERATION.format('finished', 41)}",
            "my-id: 26 tokens in (16 cached), 41 out, first after 0.50 s, 20.0 tokens/s",
        ),
        (
            f"{ENGINE}INFO {HEAD} my-id -- {GENERATION.format('client gone', 1)}",
            "my-id: 26 tokens in (16 cached), 1 out, first after 0.50 s, client gone",
        ),
        (
            f"{ENGINE}INFO {HEAD} -- {GENERATION.format('failed', 0)}",
            "my-id: 26 tokens in (16 cached), 0 out, failed",
        ),
        (
            f"{ENGINE}INFO {HEAD} -- generation finished model=demo prom(another line) INFO",
            "generation finished model=demo prom(another line) INFO",
        ),
        (
            f"{GATEWAY}INFO {HEAD} -- POST /v1/completions 429 model=demo",
            "POST /v1/completions 429 model=demo",
        ),
        (f"{GATEWAY}INFO {HEAD} -- POST /v1/completions 200 model=demo", None),
        (f"{GATEWAY}INFO {HEAD} -- Started <ray.serve._private.router.Client at 0x7f>.", None),
        (f"(ServeController pid=9) INFO {HEAD} -- Adding 1 replica", None),
        (f"(ServeController pid=9) WARNING {HEAD} -- {SLOW_START}", None),
        (f"(ServeController pid=9) WARNING {HEAD} -- Cannot deregister autoscaling state", None),
        (f"{ENGINE}Traceback (most recent call last):", None),
        (f'{ENGINE}  File "find.py", line 49', None),
        (f"{ENGINE}{{not json", None),
        ("2026-11-22 19:28:54,443 INFO worker.py:2029 -- Started a local Ray instance.", None),
        ("", None),
    ],
)
def test_a_line(line: str, shown: str | None) -> None:
    assert to_show(line) == shown


LINES = [
    "INFO worker.py:2029 -- View the dashboard at \x1b[1m\x1b[32mhttp://127.0.0.1:8266 \x1b[39m\n",
    f"\x1b[36m{ENGINE[:-1]}\x1b[0m INFO {HEAD} -- loading demo\n",
    "ConnectionError: nobody there\n",
]


def test_a_terminal_has_what_is_of_interest() -> None:
    terminal = io.StringIO()
    output = ServerOutput(LINES, LiveTerminal(terminal), verbose=False)
    output.start()
    assert output.last_words().endswith("ConnectionError: nobody there\n")
    assert output.dashboard_url == "http://127.0.0.1:8266"
    assert terminal.getvalue() == "loading demo\n"


def test_a_verbose_one_has_everything_as_it_was() -> None:
    terminal = io.StringIO()
    output = ServerOutput(LINES, LiveTerminal(terminal), verbose=True)
    output.start()
    output.last_words()
    assert terminal.getvalue() == "".join(LINES)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def loading(*done: str) -> list[str]:
    """Lines of an engine that loads 2 GB, and goes on."""
    figures = "of 2.00 GB, 500.0 MB/s, 1 s left"
    lines = [f"{ENGINE}INFO {HEAD} -- loading weights: {one} {figures}\n" for one in done]
    return [*lines, f"{ENGINE}INFO {HEAD} -- loaded\n"]


def written(lines: Sequence[str], out: io.StringIO) -> str:
    output = ServerOutput(lines, LiveTerminal(out), verbose=False)
    output.start()
    output.last_words()
    return out.getvalue()


def test_a_terminal_has_a_bar_that_grows_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    [nothing, first, second, last] = written(loading("0.50", "1.50"), Screen()).split(CLEAR_LINE)
    assert nothing == ""
    assert first.startswith("loading weights  25% [#")
    assert first.endswith("] 0.50 of 2.00 GB, 500.0 MB/s, 1 s left")
    assert second.startswith("loading weights  75% [#")
    assert second.count("#") > first.count("#") > 0
    assert max(len(first), len(second)) < 80
    assert last == "loaded\n"


def test_the_launchers_own_lines_take_the_bars_place() -> None:
    screen = Screen()
    terminal = LiveTerminal(screen)
    terminal.show("loading weights", 0.5, "1.00 of 2.00 GB")
    record = logging.LogRecord("pomona", logging.INFO, "", 1, "Still starting.", None, None)
    logging.StreamHandler(terminal).emit(record)
    assert screen.getvalue().rpartition(CLEAR_LINE)[2] == "Still starting.\n"


def test_a_file_has_a_line_now_and_then() -> None:
    lines = written(loading("0.50", "1.00", "1.50"), io.StringIO()).splitlines()
    assert lines == ["loading weights: 0.50 of 2.00 GB, 500.0 MB/s, 1 s left", "loaded"]


def test_a_download_of_unknown_size_has_no_bar() -> None:
    line = f"{ENGINE}INFO {HEAD} -- downloading: 0.25 GB, 20.0 MB/s\n"
    assert written([line], Screen()) == f"{CLEAR_LINE}downloading  0.25 GB, 20.0 MB/s"


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0, 1.01])
def test_a_bar_stays_within_its_line(columns: int, share: float | None) -> None:
    line = bar("loading weights", share, "1.00 of 2.00 GB, 500.0 MB/s, 2 s left", columns)
    assert len(line) < columns


@pytest.mark.parametrize("total", [0, 2_000_000_000])
def test_what_an_engine_says_of_its_progress_is_known_as_such(
    total: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seconds = itertools.count(0.0, 2.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    progress.Progress(total=total, desc="loading weights", disable=True).update(500_000_000)
    [told] = caplog.messages
    shown = written([f"{ENGINE}INFO {HEAD} -- {told}\n"], Screen())
    assert shown.startswith(f"{CLEAR_LINE}loading weights  ")
    assert (" 25% [#" in shown) == bool(total)
