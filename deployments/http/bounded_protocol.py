"""uvicorn's HTTP/1.1 protocol, with bounds on what a client can make a connection hold."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from deployments.http.errors import ApiError
from deployments.http.lingering_close import LingeringTransport

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers; one read of the socket may exceed it."""
MAX_AHEAD = 16
"""Requests that a client may send before it has the answer to an earlier one."""
MAX_AHEAD_BYTES = 64 * 1024
"""Of their bodies."""
SEND_BUFFER_BYTES = 256 * 1024
"""Of an answer that its client has not read yet, in the socket; the system itself would let it
become many megabytes, and whoever makes the answer would hear that late."""
UNSENT_BYTES = 64 * 1024
"""Of these, that its client has no room for: more are for what is on a long way."""
VERSIONS = ("1.0", "1.1")

NOT_HTTP = ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http")
UPGRADE_WITH_BODY = ApiError(
    400,
    "A request with a body can't ask for another protocol: leave out the header Upgrade.",
    param="Upgrade",
    code="invalid_http",
)
UNKNOWN_VERSION = ApiError(400, "Only HTTP/1.1 is spoken here.", code="invalid_http")
NOT_ONE_HOST = ApiError(400, "A request needs one header Host.", param="Host", code="invalid_http")
UNKNOWN_CODING = ApiError(
    400,
    "The only transfer coding that is understood is `chunked`.",
    param="Transfer-Encoding",
    code="invalid_http",
)
TOO_SLOW = ApiError(408, "The request took too long to arrive.", code="request_too_slow")
HEAD_TOO_LARGE = ApiError(
    431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.", code="head_too_large"
)
ErrorBody = Callable[[ApiError, Scope], bytes]
"""Of what a client is told in a scope, which may lack all but its type, a path and headers."""
BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


def openais_body(error: ApiError, scope: Scope) -> bytes:
    return error.json()


@dataclass(frozen=True)
class ClientTimeouts:
    """In seconds; None: for ever."""

    receive_s: float | None = 60.0
    """For a whole request to arrive."""
    send_s: float | None = None
    """For a client to read on, while more of its answer waits."""
    last_request_s: float = 0.0
    """For a client that is connected to ask once more, when the server is to stop."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn itself bounds neither the size of a head nor the time that a request takes to arrive
    or an answer to be read."""

    timeouts = ClientTimeouts()
    error_body = staticmethod(openais_body)

    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _stopping: asyncio.TimerHandle | None = None
    _refusal = NOT_HTTP
    _in_request = False
    _in_head = True
    _unparsed_bytes = 0
    """Received since something that is handed on or dropped: a part of a body, a whole request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._linger = LingeringTransport(transport, is_peer_sending=self._is_peer_sending)
        self._open_cycles: list[RequestResponseCycle] = []
        super().connection_made(self._linger)  # type: ignore[arg-type]
        with suppress(OSError):
            # A peer that has hung up by now is noticed soon enough; macOS refuses options then.
            _bound_what_waits(transport.get_extra_info("socket"))
        self._receive_until_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._receiving)
        _cancel(self._sending)
        _cancel(self._stopping)
        self._linger.closed()
        super().connection_lost(exc)
        # uvicorn leaves its timer, which holds all this, if the connection was reset.
        self._unset_keepalive_if_required()
        # uvicorn tells the last request alone.
        for cycle in self._open_cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._linger.is_lingering:
            self._linger.discard(data)
            return
        if self._receiving is None:
            self._receive_until_deadline()
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HEAD_TOO_LARGE)
        self._read_ahead()

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        # It may have come in one read with the end of another.
        if self._receiving is None:
            self._receive_until_deadline()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer would become a header of a request that has been let in without it.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._check_framing()
        if self.parser.should_upgrade() and any(name in BODY_HEADERS for name, _ in self.headers):
            # The parser would take the body for another request, and a proxy in front would give
            # the answer to that to somebody else.
            self._fail(UPGRADE_WITH_BODY)
        super().on_headers_complete()
        self._open_cycles.append(self.cycle)
        # The parser drops what it has read behind an upgrade: its client would wait for ever.
        if self._stopping is not None or self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        self._in_request = False
        _cancel(self._receiving)
        self._receiving = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._open_cycles = [one for one in self._open_cycles if not one.response_complete]
        if self._in_request and not self._in_head and self.cycle.response_complete:
            # Nobody wants the rest of a request that has its answer.
            self.transport.close()
        super().on_response_complete()

    def shutdown(self) -> None:
        # A request may be under way on a connection that has none yet.
        self._stopping = self.loop.call_later(self.timeouts.last_request_s, self._close_if_idle)
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.timeouts.send_s is not None:
            self._sending = self.loop.call_later(self.timeouts.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._sending)
        super().resume_writing()

    def _receive_until_deadline(self) -> None:
        _cancel(self._receiving)
        if self.timeouts.receive_s is not None:
            self._receiving = self.loop.call_later(self.timeouts.receive_s, self._received_too_slow)

    def _received_too_slow(self) -> None:
        if self._is_answering():
            # What came meanwhile belongs to the next request, and waits for this one.
            self._receive_until_deadline()
        elif self._in_request and (self._in_head or not self.cycle.response_complete):
            self._refuse(TOO_SLOW)
        else:
            self.transport.close()

    def _close_if_idle(self) -> None:
        if not (self._in_request or self._is_answering()):
            self.transport.close()

    def _check_framing(self) -> None:
        """What two servers may read in two ways is refused."""
        values = [value for name, value in self.headers if name == b"transfer-encoding"]
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        version = self.parser.get_http_version()
        if version not in VERSIONS:
            self._fail(UNKNOWN_VERSION)
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            self._fail(NOT_ONE_HOST)
        if values and (len(values) > 1 or values[0].lower() != b"chunked" or version == "1.0"):
            self._fail(UNKNOWN_CODING)

    def _fail(self, refusal: ApiError) -> None:
        """Ends the parser, which has the refusal sent."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    def _read_ahead(self) -> None:
        """While an answer is made, so that the end of its client is noticed: uvicorn would stop
        reading when a second request comes."""
        if self.transport.is_closing() or not self._is_answering():
            return
        bodies = sum(len(cycle.body) for cycle, _ in self.pipeline)
        if len(self.pipeline) > MAX_AHEAD or bodies > MAX_AHEAD_BYTES:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _is_peer_sending(self) -> bool:
        return self._in_request and not self._is_answering()

    def _is_answering(self) -> bool:
        cycle = self.cycle
        return bool(self.pipeline) or (
            cycle is not None
            and not cycle.response_complete
            and (cycle.response_started or not cycle.more_body)
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer in the place of the application, unless it is answering, and hang up."""
        if self._is_answering():
            self.transport.close()
            return
        _cancel(self._receiving)
        body = self.error_body(error, self._scope_so_far())
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _scope_so_far(self) -> Scope:
        """Of the request that is under way, if it got as far as that."""
        if not self._in_request:
            return {"type": "http", "path": "", "headers": []}
        path = unquote(self.url.partition(b"?")[0].decode("ascii", "replace"))
        return {"type": "http", "path": path, "headers": self.headers}


def _bound_what_waits(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if sys.platform == "linux":
        # On macOS this bounds nothing: a socket takes more, and only says that it is full.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def bounded_protocol(timeouts: ClientTimeouts, error_body: ErrorBody) -> type[BoundedProtocol]:
    """For uvicorn, which makes one of them for each connection."""
    members = {"timeouts": timeouts, "error_body": staticmethod(error_body)}
    return type("BoundedProtocol", (BoundedProtocol,), members)
