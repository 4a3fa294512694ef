from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from deployments.http.server import HttpServer

APP = Starlette(routes=[Route("/", lambda request: PlainTextResponse(request.client.host))])


async def test_a_port_that_its_last_owner_lets_go_of_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = asyncio.Event()
    bind = HttpServer._bind

    def observed(server: HttpServer) -> socket.socket:
        try:
            return bind(server)
        except OSError:
            refused.set()
            raise

    monkeypatch.setattr(HttpServer, "_bind", observed)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HttpServer(APP, host="127.0.0.1", port=port)
        starting = asyncio.create_task(server.start(patience_s=30))
        await refused.wait()
    url = await starting
    try:
        async with httpx.AsyncClient() as client:
            # Whoever is in front of it, a client can't give itself another address.
            response = await client.get(url, headers={"X-Forwarded-For": "10.9.8.7"})
    finally:
        await server.stop()
    assert (url, response.text) == (f"http://127.0.0.1:{port}", "127.0.0.1")


async def test_a_port_that_stays_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{port}"):
            await HttpServer(APP, host="127.0.0.1", port=port).start(patience_s=0.15)


async def test_one_that_ends_by_itself_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = asyncio.Event()

    async def failing(self: uvicorn.Server, counter: int) -> bool:
        await tick.wait()
        raise MemoryError

    monkeypatch.setattr(uvicorn.Server, "on_tick", failing)
    server = HttpServer(Starlette(), host="127.0.0.1", port=0)
    server.check_health()
    await server.start()
    server.check_health()
    tick.set()
    assert server._task is not None
    await asyncio.wait([server._task])
    with pytest.raises(RuntimeError, match="has ended") as raised:
        server.check_health()
    assert isinstance(raised.value.__cause__, MemoryError)


async def test_one_that_was_stopped_is_healthy() -> None:
    server = HttpServer(Starlette(), host="127.0.0.1", port=0)
    await server.start()
    await server.stop()
    server.check_health()
