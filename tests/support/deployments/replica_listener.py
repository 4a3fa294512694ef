"""A replica of single steps, which says what it likes to and hangs up when it likes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

from deployments.gateway.relay.connections import ReplicaConnections

BODY = b"data: 1\n\ndata: 2\n\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\nX-Mark: Yes\r\n\r\n" + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Mark: Yes\r\n\r\n"
    b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
)
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: 1\n\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Listener:
    """Each request is answered by ``answer``, on its connection."""

    answer: Answer
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    tasks: list[asyncio.Task[None] | None] = field(default_factory=list)
    num_ended: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.tasks.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, told, length = head.partition(b"Content-Length: ")
                body = await reader.readexactly(int(length.split()[0])) if told else b""
                self.requests.append(head + body)
                await self.answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.num_ended += 1
        finally:
            writer.close()


def says(*pieces: bytes, then_closes: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            # The next piece is another packet.
            await asyncio.sleep(0)
        if then_closes:
            writer.close()

    return answer


HANGS_UP = says(then_closes=True)


def in_turn(*answers: Answer) -> Answer:
    left = iter(answers)

    async def answer(writer: asyncio.StreamWriter) -> None:
        await next(left)(writer)

    return answer


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[Listener]:
    listener = Listener(answer)
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield listener
    finally:
        server.close()
        for writer in listener.writers:
            writer.close()
        await asyncio.gather(*filter(None, listener.tasks))
        await server.wait_closed()


@asynccontextmanager
async def connected(
    answer: Answer, *, keep_idle_s: float = 60
) -> AsyncIterator[tuple[Listener, ReplicaConnections]]:
    async with listening(answer) as listener:
        with closing(ReplicaConnections(keep_idle_s=keep_idle_s)) as connections:
            yield listener, connections


async def reaches(number: Callable[[], int], wanted: int) -> None:
    async with asyncio.timeout(10):
        while number() != wanted:
            await asyncio.sleep(0.001)
