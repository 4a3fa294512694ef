"""One connection to a replica, which speaks HTTP/1.1: a request, its response as it arrives, again.

An engine's step gives every stream a chunk at once, and each waits for those before it. So a chunk
is parsed and handed over where it is received: no timer is set for it, nothing is called twice. A
general client spends about a quarter more of a gateway's processor on each (``ops.bench.relay``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import httptools

MAX_UNREAD_BYTES = 64 * 1024
"""Of one body; a replica whose client reads no faster has to wait."""
RECEIVE_BUFFER_BYTES = 64 * 1024
"""Of what has come and was not received yet, in the socket; the system itself would let it become
many megabytes, and the replica would hear that late."""


class ConnectionLostError(Exception):
    """The replica hung up, or did not speak HTTP, before its response was whole."""


class StaleConnectionError(ConnectionLostError):
    """A connection that had carried an earlier request broke before a byte of the response came."""


class ReplicaResponse:
    """What has come of a response so far; ``httptools`` calls the methods that begin with ``on``.

    Reading raises ``ConnectionLostError``, or ``TimeoutError`` once the replica has stalled, after
    what came before that.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        """None once nothing more may come: it refers back to this object."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.has_begun = False
        """Whether a byte of it has come."""
        self.is_complete = False
        self.is_paused = False
        """Whether the replica is kept from sending more."""
        self.was_paused = False
        """The same, since whoever asks for it has set it back."""
        self.closes_after = False
        """Whether the connection can't be used again."""
        self._has_head = False
        self._unread: list[bytes] = []
        self._num_unread_bytes = 0
        self._failure: tuple[type[Exception], str] | None = None
        """Raised anew each time: an exception that is kept refers back to this object."""
        self._waiter: asyncio.Future[None] | None = None

    def header(self, name: str) -> bytes | None:
        """The first of that name, in whatever case."""
        sought = name.lower().encode()
        return next((value for one, value in self.headers if one == sought), None)

    async def read_head(self) -> None:
        while not self._has_head:
            await self._wait()

    async def readany(self) -> bytes:
        """Of the body, all that nobody has read yet; empty at its end."""
        while not self._unread:
            if self.is_complete:
                return b""
            await self._wait()
        body = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._num_unread_bytes = 0
        if self.is_paused:
            self.is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return body

    async def read(self) -> bytes:
        """The rest of the body."""
        chunks = []
        while chunk := await self.readany():
            chunks.append(chunk)
        return b"".join(chunks)

    def feed(self, data: bytes) -> None:
        """What the connection has received."""
        self.has_begun = True
        try:
            if self._parser is None:
                raise httptools.HttpParserError("more came after its end")
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(ConnectionLostError, f"the answer is not valid HTTP/1.1: {error}")
        if self._num_unread_bytes > MAX_UNREAD_BYTES and not self._transport.is_closing():
            self.is_paused = self.was_paused = True
            self._transport.pause_reading()
        self._wake()

    def fail(self, kind: type[Exception], reason: str) -> None:
        """Nothing more will come."""
        self.closes_after = True
        self._failure = self._failure or (kind, reason)
        self._parser = None
        self._wake()

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status < 200:
            raise ValueError("an interim answer that nobody asked for")
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._unread.append(body)
        self._num_unread_bytes += len(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.is_complete = True
        self.closes_after = not self._parser.should_keep_alive()
        self._parser = None

    async def _wait(self) -> None:
        if self._failure is not None:
            kind, reason = self._failure
            raise kind(reason)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ReplicaConnection(asyncio.Protocol):
    """``on_lost`` hears when it has ended, on either side."""

    def __init__(self, on_lost: Callable[[ReplicaConnection], None]) -> None:
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._response: ReplicaResponse | None = None
        self._was_used = False
        """Whether it has carried a whole response."""
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timeout_s = 0.0
        self._progress_at = 0.0
        self._num_unsent_bytes = 0

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        # A peer that has hung up by now is noticed soon enough; macOS refuses to set options then.
        with suppress(OSError):
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            _notice_a_dead_peer(connection)

    def send(self, request: bytes, stall_timeout_s: float) -> ReplicaResponse:
        """``request``: head and body. The response stalls if the replica neither takes any of the
        request nor sends anything for so long, or up to twice as long while it takes a request."""
        self._set_timer(stall_timeout_s, self._check_progress)
        self._stall_timeout_s = stall_timeout_s
        self._progress_at = self._loop.time()
        self._response = ReplicaResponse(self._transport)
        self._transport.write(request)
        self._num_unsent_bytes = self._transport.get_write_buffer_size()
        return self._response

    def finish(self, keep_idle_s: float) -> bool:
        """Nobody reads the response any more. Whether another request can follow, within that
        time; otherwise the connection is closed, and the replica stops its work."""
        response, self._response = self._response, None
        assert response is not None, "nothing was sent"
        if (
            not response.is_complete
            or response.closes_after
            or response.is_paused
            or self._transport.is_closing()
            # An early answer: the next request would have to wait for the rest of this one.
            or self._transport.get_write_buffer_size()
        ):
            response.fail(ConnectionLostError, "nobody reads it any more")
            self.abort()
            return False
        self._was_used = True
        self._set_timer(keep_idle_s, self.abort)
        return True

    def abort(self) -> None:
        self._cancel_timer()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            # Whatever it is, it would be taken for the answer to the next request.
            self.abort()
            return
        self._progress_at = self._loop.time()
        self._response.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        if self._response is not None:
            reason = f": {exc}" if exc else ""
            is_stale = self._was_used and not self._response.has_begun
            kind = StaleConnectionError if is_stale else ConnectionLostError
            self._response.fail(kind, f"the connection was closed{reason}")
        self._on_lost(self)

    def _check_progress(self) -> None:
        """One timer for a whole response is set again when it is due, not with each chunk."""
        response = self._response
        if response is None or response.is_complete:
            return
        now = self._loop.time()
        num_unsent_bytes = self._transport.get_write_buffer_size()
        if response.was_paused or num_unsent_bytes < self._num_unsent_bytes:
            self._progress_at = now
        self._num_unsent_bytes = num_unsent_bytes
        response.was_paused = response.is_paused
        silent_s = now - self._progress_at
        if silent_s >= self._stall_timeout_s:
            response.fail(TimeoutError, f"the replica was silent for {silent_s:.1f} s")
        else:
            self._set_timer(self._stall_timeout_s - silent_s, self._check_progress)

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(seconds, then)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _notice_a_dead_peer(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS calls the idle time TCP_KEEPALIVE.
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    for option, value in ((idle, 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
