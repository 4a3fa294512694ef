"""What a client has been sent of one relayed response, and so what may still be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Send

from deployments.gateway.relay.connection import ReplicaResponse
from deployments.http.errors import ApiError
from deployments.protocol import StreamForm
from deployments.wire.envelope import CHECKPOINTS_HEADER
from deployments.wire.failure import FAILURE_HEADER

# What a proxy must not pass on (RFC 9110, 7.6.1), and what the gateway's own server writes.
_OF_A_CONNECTION = (
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade content-length date server x-request-id"
)
_OF_THE_WIRE = (CHECKPOINTS_HEADER.lower().encode(), FAILURE_HEADER.lower().encode())
DROPPED_HEADERS = {*_OF_A_CONNECTION.split(), *_OF_THE_WIRE}


@dataclass(frozen=True)
class Head:
    """Status and headers of a response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, response: ReplicaResponse) -> Head:
        """The head of a replica's response, without what belongs to that connection."""
        dropped = DROPPED_HEADERS
        if named := response.header("Connection"):
            dropped = dropped | {name.strip() for name in named.lower().split(b",")}
        kept = tuple(item for item in response.headers if item[0] not in dropped)
        return cls(response.status, kept)

    @classmethod
    def of_error(cls, status: int, headers: Mapping[str, str]) -> Head:
        """Without what is between replica and gateway."""
        named = {"content-type": "application/json", **headers}
        encoded = ((name.lower().encode(), value.encode()) for name, value in named.items())
        return cls(status, tuple(item for item in encoded if item[0] not in DROPPED_HEADERS))


class Keeper(Protocol):
    """Keeps an answer, and has it say whether it is kept."""

    async def kept(self, body: bytes) -> bytes:
        """A whole answer as it is to be told."""
        ...

    async def kept_end(self, events: bytes) -> bytes:
        """The last events of a stream as they are to be told."""
        ...


class ClientResponse:
    """A response that starts with the first bytes there are to send."""

    def __init__(
        self,
        send: Send,
        stream_form: StreamForm,
        request_id: str = "",
        keeper: Keeper | None = None,
    ) -> None:
        self._send = send
        self._keeper = keeper
        self._request_id = request_id
        self._stream_form = stream_form
        self._told = b""
        """The latest events that are more than keep-alives."""
        self.status = 0
        """What the client was told; 0 before the response has started."""
        self.is_complete = False
        """Whether the client was sent its end."""
        self.has_content = False
        """Whether more than keep-alives went out: then nobody can start over unnoticed."""
        self.error_status = 0
        """The status of an error that was told within a stream, after it had begun as a success."""
        self.error: ApiError | None = None
        """What the gateway itself had to tell."""
        self.refusal: tuple[Head, bytes] | None = None
        """An error that is the client's whole answer, whoever told it."""

    @property
    def has_error(self) -> bool:
        """Whether a stream that began as a success has told of an error."""
        return self.error_status != 0

    @property
    def final_status(self) -> int:
        """What the whole answer came to, whatever it began with."""
        return self.error_status or self.status

    async def begin(self, head: Head) -> None:
        """Pass on the head of a stream, unless an earlier replica's went out."""
        if self.status == 0:
            message: dict[str, Any] = {"type": "http.response.start", "status": head.status}
            await self._send(message | {"headers": list(head.headers)})
            self.status = head.status

    async def events(self, events: bytes) -> None:
        """Pass on whole events of a stream that has begun."""
        if self._keeper is not None and events.endswith(self._stream_form.last_event):
            events = await self._keeper.kept_end(events)
        await self._send({"type": "http.response.body", "body": events, "more_body": True})
        if _more_than_comments(events):
            self.has_content, self._told = True, events

    async def end(self, rest: bytes = b"") -> None:
        """Pass on the end of a response that has begun."""
        await self._send({"type": "http.response.body", "body": rest, "more_body": False})
        self.is_complete = True

    async def whole(self, head: Head, body: bytes) -> None:
        """Pass on a complete answer, or after an earlier replica's keep-alives its equivalent."""
        self.refusal = (head, body) if head.status >= 400 else None
        if self._keeper is not None and self.refusal is None:
            body = await self._keeper.kept(body)
        if self.status == 0:
            if self.refusal:
                body = self._stream_form.error_body(body, self._request_id)
            length = (b"content-length", str(len(body)).encode())
            head = Head(head.status, (*head.headers, length))
        else:
            # The body is JSON: a line break in it can only be between two tokens.
            body = self._stream_form.failure_event(body.replace(b"\n", b" "), self._told)
            self.error_status = head.status
        await self.begin(head)
        await self.end(body)

    async def fail(self, error: ApiError) -> None:
        """Tell the client what went wrong: by status, or as an event once a stream has begun."""
        self.error = error
        await self.whole(Head.of_error(error.status, error.headers), error.json())


def _more_than_comments(events: bytes) -> bool:
    begins = (b"data:", b"event:")
    return events.startswith(begins) or any(b"\n\n" + one in events for one in begins)
