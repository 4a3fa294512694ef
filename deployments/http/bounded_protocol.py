"""uvicorn's HTTP/1.1 protocol, with bounds on what a client can make a connection hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.http.errors import ApiError

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers; one read of the socket may exceed it."""

NOT_HTTP = ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http")
UPGRADE_WITH_BODY = ApiError(
    400,
    "A request with a body can't ask for another protocol: leave out the header Upgrade.",
    param="Upgrade",
    code="invalid_http",
)
TOO_SLOW = ApiError(408, "The request took too long to arrive.", code="request_too_slow")
HEAD_TOO_LARGE = ApiError(
    431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.", code="head_too_large"
)
BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


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

    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _stopping: asyncio.TimerHandle | None = None
    _refusal = NOT_HTTP
    _in_request = False
    _in_head = True
    _unparsed_bytes = 0
    """Received since something that is handed on or dropped: a part of a body, a whole request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._receive_until_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._receiving)
        _cancel(self._sending)
        _cancel(self._stopping)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._receiving is None:
            self._receive_until_deadline()
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer would become a header of a request that has been let in without it.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.parser.should_upgrade() and any(name in BODY_HEADERS for name, _ in self.headers):
            # The parser would take the body for another request, and a proxy in front would give
            # the answer to that to somebody else.
            self._refusal = UPGRADE_WITH_BODY
            raise ValueError("an upgrade with a body")
        super().on_headers_complete()
        if self._stopping is not None:
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

    def _is_answering(self) -> bool:
        cycle = self.cycle
        return bool(self.pipeline) or (
            cycle is not None and not (cycle.response_complete or cycle.more_body)
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer in the place of the application, and hang up."""
        body = error.json()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def bounded_protocol(timeouts: ClientTimeouts) -> type[BoundedProtocol]:
    """For uvicorn, which makes one of them for each connection."""
    return type("BoundedProtocol", (BoundedProtocol,), {"timeouts": timeouts})
