"""One try at a request on one replica: what is sent there, and what of the answer goes on.

Nothing is re-encoded. Events are forwarded once a checkpoint has followed them, so that a stream
which breaks can be continued exactly where the client saw it end.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress

from deployments.fleet.directory import Replica
from deployments.gateway.relay.client_response import Head
from deployments.gateway.relay.connections import (
    ConnectionLostError,
    ReplicaResponse,
    UnreachableError,
)
from deployments.gateway.relay.failures import (
    CannotResumeError,
    ReplicaFailedError,
    check_failure,
)
from deployments.gateway.relay.request import CutOff, RelayedRequest
from deployments.gateway.replicas.pace import StreamTimer
from deployments.gateway.replicas.state import ReplicaState
from deployments.http import sse
from deployments.observe.tracing import trace_headers
from deployments.wire.envelope import CHECKPOINTS_HEADER, ENVELOPE_HEADER
from deployments.wire.failure import FAILURE_HEADER, BelatedError, FailureKind

CLOSES_WITHIN_S = 0.1
"""A replica ends its response right behind the last event."""


async def attempt(request: RelayedRequest, state: ReplicaState) -> None:
    """Returns once the client has a whole response. Raises ``ReplicaFailedError``, or
    ``CannotResumeError``."""
    request.sent_at = time.perf_counter()
    # Before its first byte, a silent replica may not even have the request.
    if_silent = FailureKind.SICK
    try:
        async with _post(request, state.replica) as response:
            if_silent = FailureKind.LOST
            await _forward(request, state, response)
    except asyncio.CancelledError:
        if not request.has_ended:
            request.cut_off = CutOff(state.replica, request.attempt_id)
        raise
    except TimeoutError as error:
        raise ReplicaFailedError(f"no answer in time: {error}", if_silent) from error
    except UnreachableError as error:
        raise ReplicaFailedError(f"unreachable: {error}", FailureKind.SICK) from error
    except ConnectionLostError as error:
        raise ReplicaFailedError(str(error), FailureKind.LOST) from error


def _post(
    request: RelayedRequest, replica: Replica
) -> AbstractAsyncContextManager[ReplicaResponse]:
    outgoing, settings, log = request.outgoing, request.parts.settings, bytes(request.reader.log)

    def envelope() -> Mapping[str, str]:
        """Make a new attempt id each time: a replica refuses an id whose attempt has ended."""
        request.attempt_id = uuid.uuid4().hex
        sealed = outgoing.envelope.for_attempt(request.attempt_id, log, request.reader.num_events)
        return {ENVELOPE_HEADER: sealed.header()}

    return request.parts.connections.request(
        "POST",
        replica.url,
        outgoing.path,
        body=outgoing.body + log,
        headers={
            "Authorization": f"Bearer {replica.secret}",
            "Content-Type": "application/json",
            "X-Request-Id": outgoing.request_id,
            **envelope(),
            **trace_headers(),
        },
        renew=envelope,
        connect_timeout_s=settings.connect_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
    )


async def _forward(request: RelayedRequest, state: ReplicaState, response: ReplicaResponse) -> None:
    client = request.client
    head, failure = Head.of(response), _text(response.header(FAILURE_HEADER))
    if head.status == 200 or failure in (FailureKind.FULL, FailureKind.FULL_FOR_TENANT):
        state.answered()
    if head.status == 200 and response.header(CHECKPOINTS_HEADER) is not None:
        await _forward_events(request, state, head, response)
        return
    body = await response.read()
    check_failure(failure, head, body)
    if client.has_content:
        raise CannotResumeError(f"status {head.status} in the middle of an answer")
    state.answered()
    await client.whole(head, body)


async def _forward_events(
    request: RelayedRequest, state: ReplicaState, head: Head, response: ReplicaResponse
) -> None:
    client, reader, suspect = request.client, request.reader, request.suspect
    quarantine = request.parts.replicas.quarantine
    reader.restart()
    if request.outgoing.stream:
        await client.begin(head)
    has_begun = False
    num_had = reader.num_logged
    timer = StreamTimer(state, request.outgoing.work, num_had)
    while chunk := await timer.wait(response.readany()):
        received_at = 0.0 if client.has_content else time.perf_counter()
        if not (events := reader.feed(chunk)):
            continue
        if not has_begun:
            has_begun = True
            request.num_resumed += request.was_interrupted
            await _tell_server(request, state.replica, num_had)
        quarantine.went_on(suspect, state, reader.num_logged)
        timer.got(reader.num_logged)
        if not request.outgoing.stream:
            if body := _body_in(events):
                request.in_time.reschedule(None)
                request.is_answered = True
                await _read_to_end(response)
                await client.whole(head, body)
                return
            continue
        request.is_answered = events.endswith(request.outgoing.stream_form.last_event)
        await client.events(events)
        if received_at and client.has_content:
            _count_first_content(request, received_at)
        if request.is_answered:
            request.in_time.reschedule(None)
            timer.end_lap()
            await _read_to_end(response)
            await client.end()
            return
    await _end_early(request)


async def _tell_server(request: RelayedRequest, replica: Replica, num_tokens: int) -> None:
    """It makes the tokens behind the first ``num_tokens``."""
    before, request.served_by = request.served_by, replica
    if before is not None and request.was_interrupted:
        request.parts.replicas.feed.moved(before, replica, tokens=num_tokens)
    if request.outgoing.tells_server and request.outgoing.stream:
        await request.client.events(sse.served_by(replica.replica_id, replica.node, num_tokens))


def _count_first_content(request: RelayedRequest, received_at: float) -> None:
    elapsed = time.perf_counter() - request.arrived
    request.parts.metrics.first_content(
        request.outgoing.work.model,
        elapsed,
        overhead_s=elapsed - (received_at - request.sent_at),
    )


async def _end_early(request: RelayedRequest) -> None:
    """The replica ended the answer before it was done: with an error, or in silence."""
    client, error = request.client, BelatedError.parse(request.reader.held)
    if error is None:
        raise ReplicaFailedError("ended the stream before it was done", FailureKind.LOST)
    head = Head.of_error(error.status, error.headers)
    check_failure(error.headers.get(FAILURE_HEADER), head, error.body)
    await client.whole(head, error.body)


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


def _body_in(events: bytes) -> bytes:
    """The JSON of the only event that is no comment; empty if it has not come."""
    _, found, body = (sse.EVENT_END + events).partition(sse.EVENT_END + b"data: ")
    return body.rstrip() if found else b""


async def _read_to_end(response: ReplicaResponse) -> None:
    """Nothing follows, but a connection that has been read to the end can be used again."""
    with suppress(ConnectionLostError, TimeoutError):
        async with asyncio.timeout(CLOSES_WITHIN_S):
            await response.read()
