"""A client that does to its connections what no client library would."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ops.bench.hostile import bodies

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
READ_BYTES = 1 << 16
PIECE_BYTES = 1 << 16
SHORT_S = 0.001
"""Not worth a wait."""
SMALL_BUFFER = 4096
BYTES_PER_SECOND = 125_000_000
"""Of all connections: an attacker is elsewhere, with gigabit Ethernet between. Loopback would have
it take the time of the machine's own processors."""
PAUSE_S = 0.02
"""After an answer, and after a refusal: between them a flood would be measured."""
# Balancers count requests by address, and an attacker has its own.
ADDRESS = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


@dataclass
class Link:
    """What all connections send goes through it, one piece after another."""

    free_at: float = 0.0

    async def send(self, connection: socket.socket, data: bytes) -> None:
        loop, left = asyncio.get_running_loop(), memoryview(data)
        while left:
            piece, left = left[:PIECE_BYTES], left[PIECE_BYTES:]
            self.free_at = max(self.free_at, loop.time()) + len(piece) / BYTES_PER_SECOND
            if (wait_s := self.free_at - loop.time()) > SHORT_S:
                await asyncio.sleep(wait_s)
            await loop.sock_sendall(connection, piece)


@dataclass(frozen=True)
class Attacker:
    """``seconds``: how long it is watched."""

    url: str
    model: str
    key: str
    seconds: float
    link: Link = field(default_factory=Link)

    def request(self, path: str, body: dict[str, object]) -> bytes:
        return self.around(path, bodies.encoded(self.model, body))

    def around(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    @contextmanager
    def connection(self, receive_buffer: int | None = None) -> Iterator[socket.socket]:
        """Not connected yet; ``sent`` does that."""
        with socket.socket() as made:
            made.setblocking(False)
            if receive_buffer is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            made.bind((ADDRESS, 0))
            yield made

    async def send(self, connection: socket.socket, request: bytes) -> None:
        loop, place = asyncio.get_running_loop(), urlsplit(self.url)
        await loop.sock_connect(connection, (str(place.hostname), int(place.port or 80)))
        await self.link.send(connection, request)

    async def ask(self, request: bytes) -> None:
        """Reads the answer, however long it is, and throws it away."""
        with contextlib.suppress(ConnectionError), self.connection() as connection:
            await self.send(connection, request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while await asyncio.get_running_loop().sock_recv(connection, READ_BYTES):
                pass

    async def keep_asking(self, request: bytes) -> None:
        while True:
            await self.ask(request)
            await asyncio.sleep(PAUSE_S)

    async def leave_unread(self, request: bytes) -> None:
        """As long as it is watched; then again."""
        while True:
            with contextlib.suppress(ConnectionError), self.connection(SMALL_BUFFER) as connection:
                await self.send(connection, request)
                await asyncio.sleep(self.seconds)

    async def pause(self, request: bytes) -> None:
        """Reads on for a moment after each third of the time."""
        while True:
            with contextlib.suppress(ConnectionError), self.connection(SMALL_BUFFER) as connection:
                await self.send(connection, request)
                while True:
                    await asyncio.sleep(self.seconds / 3)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._read_all(connection)

    async def _read_all(self, connection: socket.socket) -> None:
        while await asyncio.get_running_loop().sock_recv(connection, READ_BYTES):
            pass
        raise ConnectionResetError("it was cut off")

    async def leave(self, request: bytes, after_s: float) -> None:
        """Gone before the answer; then again."""
        while True:
            with contextlib.suppress(ConnectionError), self.connection() as connection:
                await self.send(connection, request)
                await asyncio.sleep(after_s)
