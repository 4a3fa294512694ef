from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ops.heartbeat.beat import OUTCOMES, Beat, beat
from ops.heartbeat.heart import Heart
from ops.heartbeat.metrics import HeartbeatMetrics
from tests.support.deployments.gateway_harness import serving

TOKEN = b'data: {"choices": [{"text": "thump"}]}\n\n'
ERROR = b'data: {"error": {"message": "no"}}\n\n'
DONE = b"data: [DONE]\n\n"


class Answering:
    """Answers with ``parts`` of a stream, then ends, breaks off or hangs; or with ``response``."""

    def __init__(self, *parts: bytes, then: str = "end", response: Response | None = None) -> None:
        self.parts, self.then, self.response = parts, then, response
        self.requests: list[tuple[str, str | None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        key = dict(scope["headers"]).get(b"authorization")
        self.requests.append((scope["path"], key and key.decode()))
        if self.response:
            await self.response(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b": comment\n\n", *self.parts):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.then == "break off":
            raise ConnectionAbortedError("the gateway is lost")
        if self.then == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as http:
        yield http


@pytest.mark.parametrize(
    ("app", "outcome"),
    [
        (Answering(TOKEN, TOKEN, DONE), "success"),
        (Answering(TOKEN), "cut"),
        (Answering(TOKEN, then="break off"), "cut"),
        (Answering(TOKEN, ERROR, DONE), "error"),
        (Answering(response=JSONResponse({}, 503)), "error"),
        (Answering(response=JSONResponse({}, 429)), "refused"),
    ],
)
async def test_a_beat_is_what_a_client_would_see(app: Answering, outcome: str) -> None:
    async with serving(app) as url, client() as http:
        done = await beat(http, url, "demo", api_key="secret", timeout_s=30)
    assert done.outcome == outcome
    assert app.requests == [("/v1/completions", "Bearer secret")]
    assert (done.first_token_s is None) == (app.response is not None)
    if done.first_token_s is not None:
        assert 0 < done.first_token_s <= done.duration_s


async def test_a_stream_that_hangs_is_given_up() -> None:
    async with client() as http, serving(Answering(TOKEN, then="hang")) as url:
        done = await beat(http, url, "demo", api_key=None, timeout_s=0.2)
    assert done.outcome == "timeout"


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with client() as http:
        done = await beat(http, f"http://127.0.0.1:{port}", "demo", api_key=None, timeout_s=30)
    assert (done.outcome, done.first_token_s) == ("unreachable", None)


def value(metrics: HeartbeatMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(
        f"pomona_heartbeat_{name}", {"url": "u", "model": "m"} | labels
    )


def test_beats_are_counted_from_zero_and_latencies_are_those_of_good_ones() -> None:
    metrics = HeartbeatMetrics()
    metrics.add("u", "m")
    assert {value(metrics, "requests_total", outcome=one) for one in OUTCOMES} == {0}
    metrics.count("u", "m", Beat("success", 0.5, 0.1))
    metrics.count("u", "m", Beat("cut", 5, 4))
    assert value(metrics, "requests_total", outcome="success") == 1
    assert value(metrics, "requests_total", outcome="cut") == 1
    assert value(metrics, "duration_seconds_sum") == 0.5
    assert value(metrics, "time_to_first_token_seconds_sum") == 0.1


async def test_beats_go_on_while_one_hangs_and_with_the_key_that_there_is_then(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    key.write_text("old\n")
    app = Answering(TOKEN, then="hang")
    async with serving(app) as url:
        heart = Heart([url], ["demo"], HeartbeatMetrics(), key, interval_s=0.01, timeout_s=60)
        running = asyncio.create_task(heart.run())
        async with asyncio.timeout(30):
            while len(app.requests) < 2:
                await asyncio.sleep(0.01)
            key.write_text("new\n")
            while app.requests[-1][1] != "Bearer new":
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert app.requests[0][1] == "Bearer old"
