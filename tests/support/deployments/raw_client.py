"""A client that sends bytes, well-formed or not, over a socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DEADLINE_S = 30


class Raw:
    """One connection, and what came back on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        """Each part in a read of its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0.02)

    async def send_until_cut_off(self, part: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                while True:
                    await self.send(part)

    async def response(self) -> tuple[int, bytes]:
        """Status and body of the next one."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            assert length, head
            return int(head.split()[1]), await self.reader.readexactly(int(length[1]))

    async def rest(self) -> bytes:
        """Until the server hangs up."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                # It hung up while there was more to read.
                return b""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Raw]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
