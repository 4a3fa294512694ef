"""Messages in both directions over a socket, as many in one piece as there are at a time."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20
"""Of the system's, in each direction: a step of a full batch goes there in one piece."""
_LENGTH = struct.Struct("!Q")


class Channel:
    """One end, which belongs to an event loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_unsendable: Callable[[Any, Exception], None],
    ) -> None:
        self._reader = reader
        self._on_unsendable = on_unsendable
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._unsent: list[Any] = []

    @classmethod
    async def over(
        cls, end: socket.socket, on_unsendable: Callable[[Any, Exception], None]
    ) -> Channel:
        """``on_unsendable``: is told of a message that can't be pickled, and why."""
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        return cls(*await asyncio.open_connection(sock=end), on_unsendable)

    @property
    def num_unread_bytes(self) -> int:
        """That the other side has not taken, and the system has no room for."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: Any) -> None:
        """With all others of this turn of the loop. What comes too late for the other side is
        dropped: its end is heard of by ``received``."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(message)

    def flush(self) -> None:
        """Send now what there is."""
        if not self._unsent:
            return
        messages, self._unsent = self._unsent, []
        try:
            data = _pickled(messages)
        except Exception:  # noqa: BLE001 Any of them may be at fault, and the others are to go.
            data = _pickled([message for message in messages if self._can_go(message)])
        if not self._writer.is_closing():
            self._writer.writelines((_LENGTH.pack(len(data)), data))

    async def received(self) -> AsyncIterator[list[Any]]:
        """What the other side sends, until it is gone."""
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                yield pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return

    def close(self) -> None:
        self.flush()
        self._writer.close()

    def _can_go(self, message: Any) -> bool:
        try:
            _pickled(message)
        except Exception as error:
            logger.exception("a message can't be sent")
            self._on_unsendable(message, error)
            return False
        return True


def _pickled(what: Any) -> bytes:
    return pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
