"""Clients that follow the fleet at a gateway, as each open page does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from deployments.gateway.watch.routes import FLEET_PATH
from deployments.http.sse import CONTENT_TYPE

EVENT = b'data: {"object":"fleet"'


@dataclass
class Watching:
    num_views: int = 0
    """That have come, of all watchers."""


class _Watcher(asyncio.Protocol):
    def __init__(self, request: bytes, told: Watching) -> None:
        self._request = request
        self._told = told
        loop = asyncio.get_running_loop()
        self.began = loop.create_future()
        """Set with the first view."""
        self.ended = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        # The gateway writes an event at once: it is not cut in two within its first bytes.
        num_views = data.count(EVENT)
        self._told.num_views += num_views
        if num_views and not self.began.done():
            self.began.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.began.done():
            self.began.set_exception(ConnectionError("the gateway tells nothing of its fleet"))
        if not self.ended.done():
            self.ended.set_result(None)


@asynccontextmanager
async def watching(url: str, secret: str, num_watchers: int) -> AsyncIterator[Watching]:
    """``num_watchers`` clients that have a view and follow it, for as long as the block runs."""
    place = urlsplit(url)
    request = (
        f"GET {FLEET_PATH} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {secret}\r\n"
        f"Accept: {CONTENT_TYPE.partition(';')[0]}\r\nConnection: close\r\n\r\n"
    ).encode()
    told = Watching()
    loop = asyncio.get_running_loop()

    async def connect() -> tuple[asyncio.BaseTransport, _Watcher]:
        transport, watcher = await loop.create_connection(
            lambda: _Watcher(request, told), str(place.hostname), int(place.port or 80)
        )
        await watcher.began
        return transport, watcher

    async def follow(connected: tuple[asyncio.BaseTransport, _Watcher]) -> None:
        transport, watcher = connected
        try:
            while True:
                # A stream ends after a while.
                await watcher.ended
                transport, watcher = await connect()
        finally:
            transport.close()

    connected = await asyncio.gather(*(connect() for _ in range(num_watchers)))
    following = [asyncio.create_task(follow(one)) for one in connected]
    try:
        yield told
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
