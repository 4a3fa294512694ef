"""Lingering close: the end of a connection whose peer still sends.

A socket that is closed with something unread resets the connection, and the peer may lose the
answer that told it why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
LINGER_BYTES = 256 * 1024


class LingeringTransport:
    """``transport``, but ``close`` only ends this side of it while ``is_peer_sending``. What comes
    then is thrown away, for ``LINGER_S``; past ``LINGER_BYTES`` nothing more is taken.
    """

    def __init__(
        self, transport: asyncio.Transport, *, is_peer_sending: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._is_peer_sending = is_peer_sending
        self._num_discarded = 0
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_lingering(self) -> bool:
        return self._end is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self.is_lingering:
            self._transport.write(data)

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._is_peer_sending():
            self._transport.close()
            return
        self._end = asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        try:
            self._transport.write_eof()
        except OSError:
            # The peer has hung up already.
            self._transport.abort()
        else:
            self._transport.resume_reading()

    def discard(self, data: bytes) -> None:
        """What the peer has sent since."""
        self._num_discarded += len(data)
        if self._num_discarded > LINGER_BYTES:
            self._transport.pause_reading()

    def closed(self) -> None:
        """The connection is lost."""
        if self._end is not None:
            self._end.cancel()
