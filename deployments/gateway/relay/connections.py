"""A gateway's connections to replicas: as many as there are requests, used again while warm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from deployments.gateway.relay.connection import (
    ConnectionLostError,
    ReplicaConnection,
    ReplicaResponse,
    StaleConnectionError,
)
from deployments.http.server import KEEP_ALIVE_S

__all__ = ["ConnectionLostError", "ReplicaConnections", "ReplicaResponse", "UnreachableError"]


class UnreachableError(Exception):
    """There is no connection to the replica, so it has not seen the request."""


class ReplicaConnections:
    """Those that have been idle for ``keep_idle_s`` are closed. Belongs to one event loop."""

    # A replica keeps an idle connection for longer, so none is closed while it is picked up.
    def __init__(self, *, keep_idle_s: float = KEEP_ALIVE_S / 2) -> None:
        self._keep_idle_s = keep_idle_s
        self._open: set[ReplicaConnection] = set()
        self._idle: dict[str, list[ReplicaConnection]] = {}
        """By the URL of the replica, the one that was used last at the end."""

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_idle(self) -> int:
        return sum(map(len, self._idle.values()))

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        path: str,
        *,
        connect_timeout_s: float,
        stall_timeout_s: float,
        headers: Mapping[str, str] | None = None,
        renew: Callable[[], Mapping[str, str]] = dict,
        body: bytes = b"",
    ) -> AsyncIterator[ReplicaResponse]:
        """The response to a request to ``path`` below the replica's base ``url``, from its head on.

        A connection that was kept may have been closed as it was picked up: if it breaks before a
        byte of the response, the request is sent once more over a new connection, with the headers
        that ``renew`` makes in place of those of the same names.

        Leaving the block before the whole response has come closes the connection.
        Raises ``UnreachableError``, ``ConnectionLostError``, ``TimeoutError`` if connecting takes
        or the replica is silent for too long, and ``ValueError`` for a header with a line break.
        """
        named = {"Host": urlsplit(url).netloc, **(headers or {})}
        head = _head(method, path, named, len(body))
        connection = self._take_idle(url) or await self._connect(url, connect_timeout_s)
        try:
            response = connection.send(head + body, stall_timeout_s)
            try:
                await response.read_head()
            except StaleConnectionError as stale:
                connection = await self._connect_again(url, connect_timeout_s, stale)
                head = _head(method, path, {**named, **renew()}, len(body))
                response = connection.send(head + body, stall_timeout_s)
                await response.read_head()
            yield response
        finally:
            if connection.finish(self._keep_idle_s):
                self._idle.setdefault(url, []).append(connection)

    def close(self) -> None:
        """Cut whatever is under way."""
        for connection in list(self._open):
            connection.abort()

    def _take_idle(self, url: str) -> ReplicaConnection | None:
        while idle := self._idle.get(url):
            connection = idle.pop()
            if not connection.is_closing:
                return connection
        return None

    async def _connect(self, url: str, timeout_s: float) -> ReplicaConnection:
        address = urlsplit(url)
        host, port = str(address.hostname), address.port or 80
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: ReplicaConnection(self._forget), host, port
                )
        except TimeoutError:
            raise TimeoutError(f"no connection within {timeout_s:g} s") from None
        except OSError as error:
            raise UnreachableError(str(error)) from error
        if connection.is_closing:
            raise UnreachableError("the connection was closed at once")
        self._open.add(connection)
        return connection

    async def _connect_again(
        self, url: str, timeout_s: float, stale: StaleConnectionError
    ) -> ReplicaConnection:
        """Raises ``stale`` if there is no connection: then the replica may have had the request."""
        try:
            return await self._connect(url, timeout_s)
        except (UnreachableError, TimeoutError) as error:
            raise stale from error

    def _forget(self, connection: ReplicaConnection) -> None:
        self._open.discard(connection)
        for url, idle in list(self._idle.items()):
            if connection in idle:
                idle.remove(connection)
            if not idle:
                del self._idle[url]


def _head(method: str, path: str, headers: Mapping[str, str], num_body_bytes: int) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if num_body_bytes or method == "POST":
        lines.append(f"Content-Length: {num_body_bytes}")
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError("a header with a line break would become two")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")
