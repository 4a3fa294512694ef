"""A gateway's own port, from one gateway of a host to the next."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments.gateway import port as gateway_port
from deployments.gateway.port import GatewayPort
from deployments.http.bounded_protocol import MAX_HEAD_BYTES, ClientTimeouts
from deployments.http.port_claim import PortClaim
from tests.support.deployments.raw_client import connected


@pytest.fixture(autouse=True)
def own_claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A socket's path must stay under 104 characters, which pytest's folders exceed.
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        monkeypatch.setenv("HOME", home)
        yield Path(home) / ".pomona" / "run"


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


@pytest.mark.parametrize(
    ("request_line", "header", "is_anthropics"),
    [
        ("POST /v1/messages HTTP/1.1", "X: y", True),
        ("POST /v1/messages/count_tokens?beta=true HTTP/1.1", "X: y", True),
        ("GET /v1/models HTTP/1.1", "anthropic-version: 2023-06-01", True),
        ("GET /v1/models/demo HTTP/1.1", "anthropic-version: 2023-06-01", True),
        ("GET /v1/models HTTP/1.1", "X: y", False),
        ("POST /v1/chat/completions HTTP/1.1", "anthropic-version: 2023-06-01", False),
        ("POST /v1/messagesx HTTP/1.1", "X: y", False),
        ("BREW /v1/messages HTTP/1.1", "X: y", False),
    ],
)
async def test_what_is_no_http_is_told_in_the_shape_of_the_api_that_is_asked(
    request_line: str, header: str, is_anthropics: bool
) -> None:
    gateway = Gateway("one", 0)
    url = await gateway.port.open()
    begun = f"{request_line}\r\nHost: x\r\n{header}\r\n".encode()
    async with connected(url) as raw:
        # An answered request before it has another path.
        await raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await raw.response())[0] == 200
        await raw.send(begun + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
        status, told = await raw.response()
    async with connected(url) as raw:
        await raw.send(begun + b"X-Long: " + b"x" * 2 * MAX_HEAD_BYTES)
        large = await raw.response()
    await gateway.port.close(timeout_s=0)
    error = json.loads(told)
    assert status == 400
    assert error["error"]["type"] == "invalid_request_error"
    assert ("type" in error) == is_anthropics
    assert ("param" in error["error"]) != is_anthropics
    if is_anthropics:
        assert (large[0], json.loads(large[1])["error"]["type"]) == (431, "request_too_large")


class Gateway:
    """Says its name; a stream of it ends when it is told to."""

    def __init__(
        self, name: str, port: int, *, is_alone: bool = True, last_request_s: float = 30.0
    ) -> None:
        self.end = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/", lambda request: JSONResponse(name)),
                Route("/stream", self._stream),
            ]
        )
        self.app.state.draining = False
        self.port = GatewayPort(
            self.app,
            node="127.0.0.1",
            host=None,
            port=port,
            is_alone=lambda: is_alone,
            timeouts=ClientTimeouts(last_request_s=last_request_s),
        )

    async def _stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun "
            await self.end.wait()
            yield b"ended"

        return StreamingResponse(parts())


async def _stops_accepting(gateway: Gateway) -> None:
    servers = gateway.port._server._server.servers
    while any(server.is_serving() for server in servers):
        await asyncio.sleep(0)


async def _answer(client: socket.socket) -> str:
    reader, writer = await asyncio.open_connection(sock=client.dup())
    return await _answer_on(reader, writer)


async def _answer_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return json.loads(text.rpartition("\r\n\r\n")[2])


async def test_a_successor_takes_over_while_streams_end(port: int) -> None:
    old, new = Gateway("old", port), Gateway("new", port)
    url = await old.port.open()
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
        async with client.stream("GET", "/stream") as stream:
            rest = stream.aiter_bytes()
            assert await anext(rest) == b"begun "
            opening = asyncio.create_task(new.port.open())
            leaving = asyncio.create_task(old.port.leave(notice_s=30))
            answers = []
            while not (opening.done() and leaving.done()):
                answers.append((await client.get("/")).json())
            closing = asyncio.create_task(old.port.close(timeout_s=30))
            await asyncio.sleep(0)
            while answers[-10:] != ["new"] * 10:
                answers.append((await client.get("/")).json())
            assert answers[0] == "old"
            assert not closing.done()
            old.end.set()
            assert await anext(rest) == b"ended"
        await closing
    assert await opening == url
    await new.port.close(timeout_s=0)


async def test_no_connection_that_a_client_has_is_lost_with_a_gateway(port: int) -> None:
    """Neither one that nobody has accepted, nor one that has not asked yet, nor one that asks for
    the second time."""
    old, new = Gateway("old", port), Gateway("new", port)
    url = await old.port.open()
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
        first = await client.get("/")
        silent = await asyncio.open_connection("127.0.0.1", port)
        leaving = asyncio.create_task(old.port.leave(notice_s=30))
        await new.port.open()
        await leaving
        closing = asyncio.create_task(old.port.close(timeout_s=30))
        # Without giving the old one the time to accept it before it stops.
        with socket.create_connection(("127.0.0.1", port)) as waiting:
            waiting.setblocking(False)
            await _stops_accepting(old)
            second = await client.get("/")
            answers = [await _answer(waiting), await _answer_on(*silent)]
        await closing
        third = await client.get("/")
    await new.port.close(timeout_s=0)
    assert [response.json() for response in (first, second, third)] == ["old", "old", "new"]
    assert second.headers["connection"] == "close"
    assert answers[1] == "old"
    assert answers[0] in ("old", "new")


async def test_a_client_that_asks_nothing_does_not_keep_a_gateway(port: int) -> None:
    gateway = Gateway("only", port, last_request_s=0.1)
    await gateway.port.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await gateway.port.leave(notice_s=0)
    await gateway.port.close(timeout_s=60)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


def _offer(claims: Path) -> str:
    [path] = claims.glob("*.sock")
    return str(path)


async def test_a_successor_that_dies_at_once_leaves_the_port_to_the_next(
    port: int, own_claims: Path
) -> None:
    old, new = Gateway("old", port), Gateway("new", port)
    url = await old.port.open()
    leaving = asyncio.create_task(old.port.leave(notice_s=30))
    await asyncio.sleep(0)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.connect(_offer(own_claims))
    assert await new.port.open() == url
    await leaving
    await old.port.close(timeout_s=0)
    await new.port.close(timeout_s=0)


async def test_a_successor_that_fails_leaves_the_port_to_the_next(port: int) -> None:
    old, new = Gateway("old", port), Gateway("new", port)
    url = await old.port.open()
    leaving = asyncio.create_task(old.port.leave(notice_s=30))
    failed = PortClaim(node="127.0.0.1", host="127.0.0.1", port=port)
    await asyncio.sleep(0)
    listener = await failed.take(patience_s=30)
    assert listener is not None
    listener.close()
    failed.release()
    assert await new.port.open() == url
    await leaving
    await old.port.close(timeout_s=0)
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(url)).json() == "new"
    await new.port.close(timeout_s=0)


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_that_others_can_read_is_named(own_claims: Path, mode: int) -> None:
    own_claims.mkdir(parents=True)
    own_claims.chmod(mode)
    with pytest.raises(PermissionError, match=f"{own_claims} has to be a folder of mode 700"):
        PortClaim(node="127.0.0.1", host="127.0.0.1", port=1)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_load_balancers_are_told_if_there_is_another_gateway(
    port: int, is_alone: bool
) -> None:
    gateway = Gateway("only", port, is_alone=is_alone)
    url = await gateway.port.open()
    async with httpx.AsyncClient(base_url=url) as client:
        assert "connection" not in (await client.get("/")).headers
        leaving = asyncio.create_task(gateway.port.leave(notice_s=30))
        await asyncio.sleep(0)
        answer = await client.get("/")
        assert (answer.json(), answer.headers["connection"]) == ("only", "close")
        assert gateway.app.state.draining is not is_alone
    leaving.cancel()
    await gateway.port.close(timeout_s=0)


async def test_the_notice_ends_without_a_successor(port: int) -> None:
    gateway = Gateway("only", port)
    url = await gateway.port.open()
    await gateway.port.leave(notice_s=0.1)
    await gateway.port.close(timeout_s=0)
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_a_stream_that_takes_too_long_is_cut(port: int) -> None:
    gateway = Gateway("only", port)
    url = await gateway.port.open()
    async with httpx.AsyncClient() as client, client.stream("GET", f"{url}/stream") as stream:
        assert await anext(stream.aiter_bytes()) == b"begun "
        await gateway.port.close(timeout_s=0)


async def test_two_gateways_do_not_stay_on_one_host(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_port, "CLAIM_PATIENCE_S", 0.1)
    first, second = Gateway("first", port), Gateway("second", port)
    await first.port.open()
    with pytest.raises(OSError, match=f"another gateway of this host serves 127.0.0.1:{port}"):
        await second.port.open()
    await first.port.close(timeout_s=0)


async def test_a_free_port_is_nobody_elses() -> None:
    first, second = Gateway("first", 0), Gateway("second", 0)
    assert await first.port.open() != await second.port.open()
    for gateway in (first, second):
        await gateway.port.leave(notice_s=0)
        await gateway.port.close(timeout_s=0)
