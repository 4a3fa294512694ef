"""A proxy between a client and a server that keeps what each says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

PATIENCE_S = 300
LAST_EVENT = b"data: [DONE]\n\n"
"""Clients may close the connection once they have this."""
HOP_BY_HOP = frozenset({"host", "connection", "content-length", "transfer-encoding"})


@dataclass
class Exchange:
    """``answer`` grows until ``is_over``."""

    path: str
    asked: Any
    """The body that was sent, parsed; None without one."""
    status: int
    answer: bytearray = field(default_factory=bytearray)
    is_over: bool = False


@dataclass(frozen=True)
class Wiretap:
    """``url`` is what clients are given instead of the server's."""

    url: str
    exchanges: list[Exchange]


@contextmanager
def wiretap(server_url: str) -> Iterator[Wiretap]:
    exchanges: list[Exchange] = []
    listener = socket.create_server(("127.0.0.1", 0))
    app = _app(server_url, exchanges)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Wiretap(f"http://127.0.0.1:{listener.getsockname()[1]}", exchanges)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _app(server_url: str, exchanges: list[Exchange]) -> Starlette:
    async def relay(request: Request) -> Response:
        body = await request.body()
        headers = [one for one in request.headers.items() if one[0] not in HOP_BY_HOP]
        client = httpx.AsyncClient(timeout=PATIENCE_S)
        url = httpx.URL(f"{server_url}{request.url.path}", query=request.url.query.encode())
        sent = client.build_request(request.method, url, headers=headers, content=body)
        sent.headers["accept-encoding"] = "identity"
        answer = await client.send(sent, stream=True)
        exchange = Exchange(
            request.url.path, json.loads(body) if body else None, answer.status_code
        )
        exchanges.append(exchange)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    exchange.answer.extend(chunk)
                    exchange.is_over = exchange.answer.endswith(LAST_EVENT)
                    yield chunk
                exchange.is_over = True
            finally:
                await answer.aclose()
                await client.aclose()

        told = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
        return StreamingResponse(chunks(), answer.status_code, told)

    methods = ["GET", "HEAD", "POST", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", relay, methods=methods)])
