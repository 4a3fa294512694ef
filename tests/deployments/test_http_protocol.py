"""What reaches a gateway's own port that no well-behaved client sends, over raw sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from deployments.http import lingering_close
from deployments.http.bounded_protocol import (
    MAX_HEAD_BYTES,
    SEND_BUFFER_BYTES,
    UNSENT_BYTES,
    BoundedProtocol,
    ClientTimeouts,
)
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import fake_replica, gateway, serving
from tests.support.deployments.raw_client import DEADLINE_S, connected
from tests.support.new_objects import new_objects_alone

KEY = "a-key-of-the-raw-client"
BODY = json.dumps({"model": "demo", "prompt": "one two"}).encode()
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    + f"Authorization: Bearer {KEY}\r\n".encode()
    + b"Content-Type: application/json\r\n"
)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@asynccontextmanager
async def gate(timeouts: ClientTimeouts | None = None) -> AsyncIterator[tuple[str, FakeBackend]]:
    """A gateway that asks for a key, and what its requests reach."""
    backend = FakeBackend()
    async with (
        fake_replica(backend) as replica,
        gateway([replica], keys=[KEY], timeouts=timeouts or ClientTimeouts()) as running,
    ):
        yield running.url, backend


def ask(method: str, path: str, *headers: bytes) -> bytes:
    start = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    return start.encode() + b"".join(headers) + b"\r\n"


ODD: dict[str, tuple[bytes, int]] = {
    "plain": (HEAD + LENGTH + b"\r\n" + BODY, 200),
    "chunked": (HEAD + CHUNKED + b"\r\n" + CHUNKS, 200),
    "a length and chunks": (HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS, 400),
    "chunked before another coding": (
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
        400,
    ),
    "an unknown coding": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS, 400),
    "a space before a colon": (HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS, 400),
    "two lengths": (HEAD + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY, 400),
    "a length that is a list": (HEAD + b"Content-Length: 5, 5\r\n\r\n" + BODY, 400),
    "a length with a sign": (HEAD + b"Content-Length: +5\r\n\r\n" + BODY, 400),
    "a length past 64 bits": (HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "a length past the limit": (HEAD + b"Content-Length: 9999999999\r\n\r\n", 413),
    "a chunk of a negative size": (HEAD + CHUNKED + b"\r\n-5\r\nabc", 400),
    "a chunk past 64 bits": (HEAD + CHUNKED + b"\r\nffffffffffffffffff\r\nabc", 400),
    "a folded header": (HEAD + b"X-A: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "bare line feeds": ((HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY, 400),
    "a bare carriage return": (HEAD + b"X-A: a\rb\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "a null in a header": (HEAD + b"X-A: a\0b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "a null in a path": (ask("GET", "/v1/\0models"), 400),
    "a coding before chunked": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS, 400),
    "chunked twice": (HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS, 400),
    "chunks in HTTP/1.0": (HEAD.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + CHUNKS, 400),
    "two hosts": (HEAD + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "no host": (HEAD.replace(b"Host: x\r\n", b"") + LENGTH + b"\r\n" + BODY, 400),
    "HTTP/0.9": (b"GET /health\r\n\r\n", 400),
    "HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", 200),
    "HTTP/1.2": (b"GET /health HTTP/1.2\r\nHost: x\r\n\r\n", 400),
    "HTTP/2.0": (b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (bytes.fromhex("16030100a50100") + bytes(160), 400),
    "noise": (bytes(range(128, 256)) + b"\r\n\r\n", 400),
    "an unknown method": (b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "HEAD": (ask("HEAD", "/v1/models"), 200),
    "OPTIONS": (ask("OPTIONS", "/v1/completions"), 405),
    "OPTIONS for all": (ask("OPTIONS", "*"), 404),
    "TRACE": (ask("TRACE", "/v1/models"), 405),
    "CONNECT": (ask("CONNECT", "evil.test:443"), 400),
    "CONNECT to a path": (ask("CONNECT", "/health"), 405),
    "another server's URL": (ask("GET", "http://evil.test/v1/nothing"), 404),
    "a URL without a path": (ask("GET", "http://evil.test"), 400),
    "a network path": (ask("GET", "//evil.test/v1/models"), 404),
    "a path out of the root": (ask("GET", "/v1/models/../../etc/passwd"), 404),
    "bytes that are no text in a path": (ask("GET", "/v1/models/%ff%00%zz"), 404),
    "line breaks in a path": (ask("GET", "/v1/models/a%0d%0aX:%20b"), 404),
    "an expectation": (HEAD + b"Expect: 200-ok\r\n" + LENGTH + b"\r\n" + BODY, 200),
    "a web socket": (ask("GET", "/v1/models", WEBSOCKET), 200),
    "a web socket on a path without keys": (
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + WEBSOCKET + b"\r\n",
        200,
    ),
    "a web socket with a body": (HEAD + WEBSOCKET + LENGTH + b"\r\n" + BODY, 400),
    "HTTP/2 in clear": (ask("GET", "/v1/models", H2C), 200),
    "HTTP/2 in clear with a body": (HEAD + H2C + LENGTH + b"\r\n" + BODY, 400),
    "two keys": (ask("GET", "/v1/models", b"Authorization: Bearer other\r\n"), 200),
    "a key in the query": (b"GET /v1/models?api_key=x HTTP/1.1\r\nHost: x\r\n\r\n", 401),
}


async def test_odd_requests_are_answered_and_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    answered: dict[str, int] = {}
    async with gate() as (url, _):
        for name, (sent, _) in ODD.items():
            async with connected(url) as raw, asyncio.timeout(DEADLINE_S):
                raw.writer.write(sent)
                answered[name] = int((await raw.reader.readuntil(b"\r\n")).split()[1])
            async with connected(url) as raw:
                raw.writer.write(ask("GET", "/v1/models"))
                assert (await raw.response())[0] == 200, name
    assert answered == {name: status for name, (_, status) in ODD.items()}
    assert [record for record in caplog.records if record.exc_info] == []
    assert KEY not in caplog.text


@pytest.mark.parametrize("upgrade", [WEBSOCKET, H2C, b"Connection: Upgrade\r\nUpgrade: x\r\n"])
@pytest.mark.parametrize("coding", ["length", "chunks"])
async def test_a_body_after_an_upgrade_is_no_second_request(upgrade: bytes, coding: str) -> None:
    """The parser takes no body after an upgrade; a balancer that takes one would have the answer
    to what is hidden in it go to the next client on this connection."""
    hidden = ask("GET", "/v1/models")
    size = b"Content-Length: %d\r\n" % len(hidden) if coding == "length" else CHUNKED
    async with gate() as (url, _), connected(url) as raw:
        await raw.send(HEAD + upgrade + size + b"\r\n")
        status, body = await raw.response()
        assert (status, json.loads(body)["error"]["param"]) == (400, "Upgrade")
        await raw.send(hidden)
        assert await raw.rest() == b""


@pytest.mark.parametrize("upgrade", [WEBSOCKET, H2C])
async def test_the_answer_to_an_upgrade_ends_the_connection(upgrade: bytes) -> None:
    """What comes in one read with such a request might be of the other protocol."""
    async with gate() as (url, _), connected(url) as raw:
        await raw.send(ask("GET", "/v1/models", upgrade) + ask("GET", "/v1/models"))
        assert (await raw.response())[0] == 200
        assert await raw.rest() == b""


async def test_a_refused_connection_that_goes_on_sending_meets_no_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gate(ClientTimeouts(receive_s=0.3)) as (url, _), connected(url) as raw:
        await raw.send(b"POST /v1/completions HTTP/1.1\r\n" + LENGTH + b"\r\n")
        assert (await raw.response())[0] == 400
        await raw.send(BODY[:5])
        # A second one, whose deadline would be later, has passed its own.
        async with connected(url) as other:
            assert await other.rest() == b""
    assert [record.message for record in caplog.records if record.exc_info] == []


async def test_what_is_no_http_is_told_in_the_shape_of_all_errors() -> None:
    async with gate() as (url, _), connected(url) as raw:
        await raw.send(b"nonsense\r\n\r\n")
        status, body = await raw.response()
        assert await raw.rest() == b""
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


@pytest.mark.parametrize(
    "start",
    [
        b"GET /" + b"a" * MAX_HEAD_BYTES,
        ask("GET", "/health")[:-2] + b"X-A: " + b"a" * MAX_HEAD_BYTES,
        ask("GET", "/health")[:-2] + b"X-A: a\r\n" * (MAX_HEAD_BYTES // 8),
        b"\r\n" * MAX_HEAD_BYTES,
        HEAD + CHUNKED + b"\r\n5;" + b"a" * MAX_HEAD_BYTES,
        HEAD + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X-A: " + b"a" * MAX_HEAD_BYTES,
    ],
    ids=["path", "header", "headers", "empty lines", "chunk extension", "trailer"],
)
async def test_a_head_without_an_end_is_cut_off(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering_close, "LINGER_S", 0.1)
    async with gate() as (url, _), connected(url) as raw:
        await raw.send(start)
        await raw.send_until_cut_off(b"a" * 4096)


async def test_a_head_that_is_too_large_is_told() -> None:
    async with gate() as (url, _), connected(url) as raw:
        await raw.send(ask("GET", "/health")[:-2] + b"X-A: " + b"a" * MAX_HEAD_BYTES)
        status, body = await raw.response()
    assert (status, json.loads(body)["error"]["code"]) == (431, "head_too_large")


async def test_a_trailer_is_no_header() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            seen.extend(scope["headers"])
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body"})

    async with serving(app) as url, connected(url) as raw:
        await raw.send(HEAD + CHUNKED + b"\r\n", CHUNKS[:-2] + b"X-Session-Id: late\r\n\r\n")
        assert (await raw.response())[0] == 200
    assert b"host" in dict(seen)
    assert b"x-session-id" not in dict(seen)


@pytest.mark.parametrize(
    "start",
    [HEAD[:20], HEAD, HEAD + LENGTH + b"\r\n" + BODY[:5], HEAD + CHUNKED + b"\r\n3\r\nab"],
    ids=["line", "headers", "body", "chunk"],
)
async def test_a_request_that_takes_too_long_is_told_and_cut_off(start: bytes) -> None:
    async with gate(ClientTimeouts(receive_s=0.3)) as (url, backend), connected(url) as raw:
        await raw.send(start)
        status, body = await raw.response()
        assert await raw.rest() == b""
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_too_slow")
    assert backend.requests == []


async def test_a_connection_that_asks_nothing_is_closed() -> None:
    async with gate(ClientTimeouts(receive_s=0.2)) as (url, _):
        async with connected(url) as silent:
            assert await silent.rest() == b""
        async with connected(url) as blank:
            await blank.send(ask("GET", "/health"), b"\r\n")
            assert (await blank.response())[0] == 200
            assert await blank.rest() == b""


async def test_nothing_is_kept_of_a_connection_that_was_reset() -> None:
    """However long an idle one would have been kept."""

    def held() -> list[BoundedProtocol]:
        gc.collect()
        return [thing for thing in gc.get_objects() if isinstance(thing, BoundedProtocol)]

    with new_objects_alone():
        async with gate() as (url, _):
            async with connected(url) as raw:
                await raw.send(ask("GET", "/health"))
                assert (await raw.response())[0] == 200
                assert held()
                no_farewell = struct.pack("ii", 1, 0)
                connection = raw.writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_farewell)
            async with asyncio.timeout(DEADLINE_S):
                while held():
                    await asyncio.sleep(0.01)


WRONG = HEAD.replace(KEY.encode(), b"wrong")
ENDLESS = b"Content-Length: 9999999999\r\n\r\n"


@pytest.mark.parametrize("head", [WRONG + ENDLESS, HEAD + ENDLESS], ids=["401", "413"])
async def test_a_refused_body_that_goes_on_for_ever_is_cut_off(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering_close, "LINGER_S", 0.1)
    async with gate(ClientTimeouts(receive_s=None)) as (url, _), connected(url) as raw:
        # So long a body is not waited for.
        await raw.send(head)
        assert (await raw.response())[0] in (401, 413)
        await raw.send_until_cut_off(b"a")


@pytest.mark.parametrize("head", [WRONG + ENDLESS, HEAD + ENDLESS], ids=["401", "413"])
async def test_a_refusal_that_does_not_wait_for_the_body_ends_the_connection(head: bytes) -> None:
    async with gate(ClientTimeouts(receive_s=None)) as (url, _), connected(url) as raw:
        await raw.send(head)
        async with asyncio.timeout(DEADLINE_S):
            answered = await raw.reader.readuntil(b"\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in answered.lower()
        assert b'"error"' in await raw.rest()


async def test_an_answer_that_no_body_was_read_for_ends_the_connection() -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"ok"})

    async with (
        serving(hasty, timeouts=ClientTimeouts(receive_s=None)) as url,
        connected(url) as raw,
    ):
        await raw.send(HEAD + ENDLESS)
        assert await raw.response() == (200, b"ok")
        assert await raw.rest() == b""


@pytest.mark.parametrize("following", [b"GET /next", HEAD + LENGTH + b"\r\n" + BODY[:5]])
async def test_an_answer_takes_its_time_whatever_else_has_begun_to_arrive(following: bytes) -> None:
    """Timeouts are for what a client sends, not for what it waits for."""
    answer = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await answer.wait()
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"ok"})

    async with (
        serving(app, timeouts=ClientTimeouts(receive_s=0.1)) as url,
        connected(url) as raw,
    ):
        await raw.send(HEAD + LENGTH + b"\r\n" + BODY, following)
        # Some deadlines pass.
        asyncio.get_running_loop().call_later(0.5, answer.set)
        assert await raw.response() == (200, b"ok")
        # The one that never ends is cut off then.
        status, body = await raw.response()
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_too_slow")


@pytest.mark.parametrize("following", [b"GET /next", HEAD + LENGTH + b"\r\n" + BODY[:5]])
async def test_what_begins_in_one_read_with_a_whole_request_has_a_deadline(
    following: bytes,
) -> None:
    async with gate(ClientTimeouts(receive_s=0.3)) as (url, _), connected(url) as raw:
        await raw.send(ask("GET", "/v1/models") + following)
        assert (await raw.response())[0] == 200
        status, body = await raw.response()
        assert await raw.rest() == b""
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_too_slow")


async def test_who_does_not_read_is_cut_off_and_frees_what_it_held() -> None:
    ended, num_taken = asyncio.Event(), 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})

            async def write() -> None:
                nonlocal num_taken
                while True:
                    part = {"type": "http.response.body", "body": bytes(1 << 16), "more_body": True}
                    await send(part)
                    num_taken += 1 << 16
                    await asyncio.sleep(0)

            writing = asyncio.create_task(write())
            while (await receive())["type"] != "http.disconnect":
                pass
            writing.cancel()
            ended.set()

    # A socket's own buffers grow to many megabytes if they are let.
    async with serving(endless, timeouts=ClientTimeouts(send_s=0.2)) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = url.removeprefix("http://").partition(":")
            client.connect((host, int(port)))
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(DEADLINE_S):
                await ended.wait()
    bound = 6 * UNSENT_BYTES if sys.platform == "linux" else 4 * SEND_BUFFER_BYTES
    assert num_taken < bound
