"""Which lines of the server a terminal shows, and how."""

from __future__ import annotations

import io

import pytest

from deployments.launch.output import ServerOutput, to_show

ENGINE = "(ServeReplica:pomona:EngineReplica pid=7) "
GATEWAY = "(ServeReplica:pomona:Gateway pid=8, ip=10.0.0.3) "
HEAD = "2026-11-22 19:28:04,026 pomona_EngineReplica mc4kk9mh"
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
    output = ServerOutput(LINES, terminal, verbose=False)
    output.start()
    assert output.last_words().endswith("ConnectionError: nobody there\n")
    assert output.dashboard_url == "http://127.0.0.1:8266"
    assert terminal.getvalue() == "loading demo\n"


def test_a_verbose_one_has_everything_as_it_was() -> None:
    terminal = io.StringIO()
    output = ServerOutput(LINES, terminal, verbose=True)
    output.start()
    output.last_words()
    assert terminal.getvalue() == "".join(LINES)
