from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from deployments.serve.proxy_headers import ReadableHeadersMiddleware, middlewares


async def answer(name: bytes, value: bytes) -> tuple[int, bytes]:
    """Of the proxy to a request with one header, in bytes as servers have them."""
    [middleware] = middlewares()
    assert middleware.cls is ReadableHeadersMiddleware
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
