"""Requests that come before an earlier one on the connection has its answer."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Receive, Scope, Send

from deployments.http.bounded_protocol import MAX_AHEAD, MAX_AHEAD_BYTES
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    fake_replica,
    gateway,
    outcomes,
    serving,
)
from tests.support.deployments.raw_client import DEADLINE_S, connected

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = json.dumps({**CHAT, "ignore_eos": True, "max_tokens": 100}).encode()
ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    % len(BODY)
) + BODY


class UntilTheEnd:
    """An application that answers nothing until its client has gone."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.num_requests += 1
            self.begun.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.ended.set()


@pytest.mark.parametrize("at_once", [True, False], ids=["one read", "a read each"])
async def test_every_request_is_told_that_its_client_has_gone(at_once: bool) -> None:
    app = UntilTheEnd()
    async with serving(app) as url, asyncio.timeout(DEADLINE_S):
        async with connected(url) as raw:
            await raw.send(*([GET * 4] if at_once else [GET] * 4))
            await app.begun.wait()
        await app.ended.wait()
    assert app.num_requests == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_client_that_left_had_asked_ahead_is_nobodys_error(stream: bool) -> None:
    backend = FakeBackend()
    backend.hold(after_tokens=2)
    ask = ASK.replace(b'"ignore_eos": true', b'"stream": true    ') if stream else ASK
    async with (
        fake_replica(backend) as one,
        gateway([one]) as running,
        asyncio.timeout(DEADLINE_S),
    ):
        async with connected(running.url) as raw:
            await raw.send(*[ask] * 4)
            await backend.held.reaches(1)
        await backend.live.reaches(0)
        assert await outcomes(running) == {("demo", "client_gone"): 1}


@pytest.mark.parametrize(
    "ahead",
    [
        GET * (MAX_AHEAD + 1),
        GET[:-2] + b"Content-Length: 999999\r\n\r\n" + bytes(MAX_AHEAD_BYTES + 1),
    ],
    ids=["requests", "bytes"],
)
async def test_who_asks_too_far_ahead_is_cut_off(ahead: bytes) -> None:
    app = UntilTheEnd()
    async with serving(app) as url, connected(url) as raw, asyncio.timeout(DEADLINE_S):
        await raw.send(GET)
        await app.begun.wait()
        await raw.send(ahead)
        await app.ended.wait()
        assert await raw.rest() == b""


async def test_nonsense_behind_a_request_does_not_get_into_its_answer() -> None:
    go_on = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"done"})

    async with serving(slow) as url, connected(url) as raw:
        await raw.send(GET)
        async with asyncio.timeout(DEADLINE_S):
            await raw.reader.readuntil(b"begun\r\n")
        await raw.send(b"nonsense\r\n\r\n")
        assert await raw.rest() == b""
        go_on.set()


async def test_requests_ahead_are_answered_in_their_order() -> None:
    num_answered = 0

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_answered
        if scope["type"] == "http":
            num_answered += 1
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"%2d" % num_answered})

    async with serving(count) as url, connected(url) as raw:
        await raw.send(GET * MAX_AHEAD)
        for number in range(1, MAX_AHEAD + 1):
            assert await raw.response() == (200, b"%2d" % number)
