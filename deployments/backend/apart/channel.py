"""Messages in both directions over a socket, as many in one piece as there are at a time."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

_LENGTH = struct.Struct("!Q")


class Channel:
    """One end, which belongs to an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._unsent: list[Any] = []

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end))

    @property
    def num_unread_bytes(self) -> int:
        """That the other side has not taken, and the system has no room for."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: Any) -> None:
        """With all others of this turn of the loop. One that comes too late for the other side is
        dropped."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(message)

    def flush(self) -> None:
        """Send now what there is."""
        if not self._unsent:
            return
        messages, self._unsent = self._unsent, []
        data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        if not self._writer.is_closing():
            self._writer.writelines((_LENGTH.pack(len(data)), data))

    async def received(self) -> AsyncIterator[list[Any]]:
        """What the other side sends, until it is gone."""
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                yield pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        self.flush()
        self._writer.close()
