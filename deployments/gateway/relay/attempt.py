"""One try at a request on one replica: what is sent there, and what of the answer goes on.

Nothing is re-encoded. Events are forwarded once a checkpoint has followed them, so that a stream
which breaks can be continued exactly where the client saw it end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

from deployments.fleet.directory import Replica
from deployments.gateway.relay.client_response import ClientResponse, Head
from deployments.gateway.relay.connections import (
    ConnectionLostError,
    ReplicaConnections,
    ReplicaResponse,
    UnreachableError,
)
from deployments.gateway.relay.failures import (
    CannotResumeError,
    FailureKind,
    ReplicaFailedError,
    belated_head,
    cannot_resume,
    failure_of,
)
from deployments.gateway.routing import Work
from deployments.http import sse
from deployments.observe.tracing import trace_headers
from deployments.wire.checkpoint import CheckpointReader
from deployments.wire.envelope import CHECKPOINTS_HEADER, ENVELOPE_HEADER, Envelope

CLOSES_WITHIN_S = 0.1
"""A replica ends its response right behind the last event."""


@dataclass(frozen=True)
class Outgoing:
    """A validated request as the replicas get it."""

    path: str
    body: bytes
    stream: bool
    request_id: str
    work: Work
    prompt_tokens: int = 0
    """As estimated."""
    tenant: str = ""
    """Whose cached prefixes it may use."""
    priority: int = 0
    """That of its API key, added to its own."""
    begins_anew: bool = False
    """Whether another replica can't go on with its answer: a log has no logprobs."""


@dataclass(frozen=True)
class Limits:
    """``max_attempts`` full replicas are asked; times are in seconds."""

    max_attempts: int
    connect_timeout_s: float
    stall_timeout_s: float
    request_timeout_s: float
    resume_timeout_s: float = 30.0


@dataclass
class Attempts:
    """What all attempts at one request share."""

    outgoing: Outgoing
    envelope: Envelope
    reader: CheckpointReader
    client: ClientResponse
    connections: ReplicaConnections
    limits: Limits
    in_time: asyncio.Timeout
    """Ends the request at its deadline."""
    on_stream: Callable[[], None]
    """Hears that a replica streams its answer, or the rest of it."""
    on_first_content: Callable[[float], None]
    """Gets the seconds from sending the request to the replica until that was read from it."""
    sent_at: float = 0.0
    """The latest attempt, by ``time.perf_counter``."""

    async def make(
        self,
        replica: Replica,
        on_alive: Callable[[], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Returns once the client has a whole response. ``on_alive`` hears that the replica is
        well, ``on_progress`` how many tokens there are so far, about. Raises
        ``ReplicaFailedError``, or ``CannotResumeError``."""
        self.sent_at = time.perf_counter()
        # Before its first byte, a silent replica may not even have the request.
        if_silent = FailureKind.SICK
        try:
            async with self._post(replica) as response:
                if_silent = FailureKind.LOST
                await self._forward(response, on_alive, on_progress)
        except TimeoutError as error:
            raise ReplicaFailedError(f"no answer in time: {error}", if_silent) from error
        except UnreachableError as error:
            raise ReplicaFailedError(f"unreachable: {error}", FailureKind.SICK) from error
        except ConnectionLostError as error:
            raise ReplicaFailedError(str(error), FailureKind.LOST) from error

    def _post(self, replica: Replica) -> AbstractAsyncContextManager[ReplicaResponse]:
        log = bytes(self.reader.log)
        return self.connections.request(
            "POST",
            replica.url,
            self.outgoing.path,
            body=self.outgoing.body + log,
            headers={
                "Authorization": f"Bearer {replica.secret}",
                "Content-Type": "application/json",
                "X-Request-Id": self.outgoing.request_id,
                ENVELOPE_HEADER: self.envelope.with_log(log).header(),
                **trace_headers(),
            },
            connect_timeout_s=self.limits.connect_timeout_s,
            stall_timeout_s=self.limits.stall_timeout_s,
        )

    async def _forward(
        self,
        response: ReplicaResponse,
        on_alive: Callable[[], None],
        on_progress: Callable[[int], None],
    ) -> None:
        head = Head.of(response)
        if head.status in (200, 429):
            on_alive()
        if head.status == 200 and response.header(CHECKPOINTS_HEADER) is not None:
            await self._forward_events(head, response, on_progress)
            return
        body = await response.read()
        if head.status != 200 and (failure := failure_of(head, body)):
            raise failure
        if self.client.has_content or cannot_resume(body):
            raise CannotResumeError(f"status {head.status} in the middle of an answer")
        on_alive()
        await self.client.whole(head, body)

    async def _forward_events(
        self, head: Head, response: ReplicaResponse, on_progress: Callable[[int], None]
    ) -> None:
        client, reader = self.client, self.reader
        reader.restart()
        if self.outgoing.stream:
            await client.begin(head)
        has_begun = False
        while chunk := await response.readany():
            received_at = time.perf_counter()
            if not (events := reader.feed(chunk)):
                continue
            if not has_begun:
                has_begun = True
                self.on_stream()
            on_progress(reader.num_logged)
            if not self.outgoing.stream:
                if body := _body_in(events):
                    self.in_time.reschedule(None)
                    await _read_to_end(response)
                    await client.whole(head, body)
                    return
                continue
            waiting = not client.has_content
            await client.events(head, events)
            if waiting and client.has_content:
                self.on_first_content(received_at - self.sent_at)
            if events.endswith(sse.DONE):
                self.in_time.reschedule(None)
                await _read_to_end(response)
                await client.end(head, b"")
                return
        await self._end_early(head, reader.held)

    async def _end_early(self, head: Head, event: bytes) -> None:
        """The replica ended the answer before it was done: with an error, or in silence."""
        if not (event.startswith(sse.ERROR_START) and event.endswith(sse.EVENT_END)):
            raise ReplicaFailedError("ended the stream before it was done", FailureKind.LOST)
        body = event.removeprefix(b"data: ").rstrip()
        told = belated_head(body)
        if failure := failure_of(told, body, has_begun=True):
            raise failure
        if cannot_resume(body):
            raise CannotResumeError(body.decode())
        if not self.outgoing.stream:
            await self.client.whole(told, body)
            return
        await self.client.events(head, event, error_status=told.status)
        await self.client.end(head, b"")


def _body_in(events: bytes) -> bytes:
    """The JSON of the only event that is no comment; empty if it has not come."""
    _, found, body = (sse.EVENT_END + events).partition(sse.EVENT_END + b"data: ")
    return body.rstrip() if found else b""


async def _read_to_end(response: ReplicaResponse) -> None:
    """Nothing follows, but a connection that has been read to the end can be used again."""
    with suppress(ConnectionLostError, TimeoutError):
        async with asyncio.timeout(CLOSES_WITHIN_S):
            await response.read()
