from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from deployments.serve.proxy import (
    BYTES_A_SECOND,
    FREE_BYTES,
    PacedBodiesMiddleware,
    ReadableHeadersMiddleware,
    middlewares,
)


async def answer(name: bytes, value: bytes) -> tuple[int, bytes]:
    """Of the proxy to a request with one header, in bytes as servers have them."""
    assert [one.cls for one in middlewares()] == [ReadableHeadersMiddleware, PacedBodiesMiddleware]
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("it reads no body")

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "headers": [(b"host", b"x"), (name, value)]}
    await ReadableHeadersMiddleware(PlainTextResponse("served"))(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("name", ["x-request-id", "x-session-id", "x_session_id", "traceparent"])
async def test_what_serve_could_not_read_is_refused_by_name(name: str) -> None:
    status, body = await answer(name.encode(), b"caf\xe9")
    error = json.loads(body)["error"]
    assert (status, error["param"], error["code"]) == (400, name, "invalid_header")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"user-agent", b"caf\xe9"),
        (b"x-request-id", "café".encode()),
        (b"x-request-id", b"a-b"),
        (b"x-\xe9", b"\xe9"),
    ],
)
async def test_all_else_is_left_to_others(name: bytes, value: bytes) -> None:
    assert await answer(name, value) == (200, b"served")


async def test_what_is_no_request_passes() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await ReadableHeadersMiddleware(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


class Clock:
    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def read_through(middleware: PacedBodiesMiddleware, parts: list[bytes]) -> list[bytes]:
    """What the application behind it gets of a body."""
    left = list(parts)

    async def receive() -> Message:
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    got: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.append(message["body"])
            more = message["more_body"]

    middleware.app = app
    await middleware({"type": "http", "headers": []}, receive, None)  # type: ignore[arg-type]
    return got


async def test_small_bodies_pass_at_once_and_large_ones_wait_for_those_before() -> None:
    clock = Clock()
    middleware = PacedBodiesMiddleware(PlainTextResponse(""), now=clock.now, sleep=clock.sleep)
    small = [b"a" * (FREE_BYTES // 2), b"b" * (FREE_BYTES // 2)]
    assert await read_through(middleware, small) == small
    assert clock.slept == []
    part = b"c" * 65536
    large = [b"a" * FREE_BYTES, part, part]
    assert await read_through(middleware, large) == large
    turn = len(part) / BYTES_A_SECOND
    assert clock.slept == pytest.approx([turn, 2 * turn])
    assert await read_through(middleware, large) == large
    assert clock.slept[2:] == pytest.approx([3 * turn, 4 * turn])
    clock.time += 1.0
    assert await read_through(middleware, large) == large
    assert clock.slept[4:] == pytest.approx([turn, 2 * turn])
