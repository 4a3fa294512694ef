"""A gateway's own port, from one gateway of a host to the next."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments import gateway_port
from deployments.gateway_port import GatewayPort


@pytest.fixture(autouse=True)
def _own_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


class Gateway:
    """Says its name; a stream of it ends when it is told to."""

    def __init__(self, name: str, port: int, *, is_alone: bool = True) -> None:
        self.end = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/", lambda request: JSONResponse(name)),
                Route("/stream", self._stream),
            ]
        )
        self.app.state.draining = False
        self.port = GatewayPort(
            self.app, node="127.0.0.1", host=None, port=port, is_alone=lambda: is_alone
        )

    async def _stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun "
            await self.end.wait()
            yield b"ended"

        return StreamingResponse(parts())


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
            for _ in range(20):
                answers.append((await client.get("/")).json())
                await asyncio.sleep(0.01)
            assert answers[0] == "old"
            assert answers[-1] == "new"
            assert not closing.done()
            old.end.set()
            assert await anext(rest) == b"ended"
        await closing
    assert await opening == url
    await new.port.close(timeout_s=0)


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
