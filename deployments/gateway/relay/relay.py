"""Relaying: the client has one answer, whichever replicas are lost meanwhile.

The gateway fixes what an answer's replicas must agree on (``envelope.py``). An answer that breaks
off is continued by another replica from the tokens behind what the gateway has of it
(``checkpoint.py``), whether the client has it streamed or whole; one that nobody has seen anything
of may begin anew, with the same seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from deployments.gateway.relay.attempt import attempt
from deployments.gateway.relay.client_response import ClientResponse
from deployments.gateway.relay.failures import (
    CannotResumeError,
    ReplicaFailedError,
    kinder,
    no_replica,
    no_room,
    replica_lost,
    stream_broken,
    timed_out,
    wait_s,
)
from deployments.gateway.relay.request import RelayedRequest
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import MOST_ALONE
from deployments.gateway.replicas.table import full_retry_after_s, open_retry_after_s
from deployments.http import sse
from deployments.http.errors import ApiError
from deployments.wire.failure import FailureKind

logger = logging.getLogger(__name__)

LOOKS_AGAIN_S = 1.0
"""One who waits in line for a replica looks out for new ones, too."""


async def relay(request: RelayedRequest) -> None:
    """Send ``request`` to replicas that the router picks until the client has a whole response,
    a replica's or an error. Cancelling it closes the connection to the replica, which frees the
    request there."""
    try:
        async with request.in_time:
            with request.parts.replicas.quarantine.request(request.suspect):
                await _relay(request)
    except TimeoutError:
        if not request.in_time.expired():
            raise
        await request.client.fail(timed_out(request.parts.settings.request_timeout_s))


async def _relay(request: RelayedRequest) -> None:
    client, parts = request.client, request.parts
    while True:
        candidates = _candidates(request)
        able = parts.replicas.quarantine.able(request.suspect, candidates)
        if candidates and not able:
            await _wait_in_line(request)
            continue
        state = _choose(request, able) if able else None
        if state is not None:
            try:
                await _attempt(request, state)
                return
            except ReplicaFailedError as failure:
                _failed(request, state, failure)
            except CannotResumeError as error:
                logger.warning("%s can't resume: %s", state.replica_id, error)
                if client.has_content:
                    await client.fail(stream_broken())
                    return
                request.reader.forget()
        if await _gives_up(request, nobody_left=state is None):
            return
        if state is None:
            request.retries.nobody_left()
        await _keep_alive(client)
        await asyncio.sleep(request.retries.delay_s())


def _choose(request: RelayedRequest, able: Sequence[ReplicaState]) -> ReplicaState | None:
    if resumable := request.outgoing.resumable:
        had_it = (one for one in able if one.replica_id == resumable.replica_id)
        if state := next(had_it, None):
            return state
    return request.parts.router.choose(request.outgoing.work, able)


def _candidates(request: RelayedRequest) -> list[ReplicaState]:
    lineage = request.lineage
    must_continue = request.client.has_content or request.outgoing.goes_on
    return [
        one
        for one in request.parts.replicas.serving(request.outgoing.work.model)
        if one.replica_id not in request.retries.tried
        and one.breaker.admits
        # An answer that goes on was let in before, and needs no place in a queue.
        and (request.reader.log or one.has_room)
        and not (must_continue and lineage and one.replica.lineage != lineage)
    ]


async def _attempt(request: RelayedRequest, state: ReplicaState) -> None:
    parts, outgoing, suspect = request.parts, request.outgoing, request.suspect
    has_content = request.client.has_content
    request.state = state
    if not has_content:
        changes = request.lineage is not None and state.replica.lineage != request.lineage
        if changes or outgoing.begins_anew:
            request.reader.forget()
        request.lineage = state.replica.lineage
    if outgoing.resumable:
        outgoing.resumable.served_by(state.replica)
    request.was_interrupted = has_content or (not outgoing.stream and request.reader.num_logged > 0)
    placed = parts.router.placed(outgoing.work, state)
    request.placement = request.placement or placed.known
    work = replace(outgoing.work, cached_tokens=placed.cached_tokens)
    with parts.replicas.attempt(work, suspect, state):
        try:
            await attempt(request, state)
        except ReplicaFailedError as failure:
            if failure.kind.is_loss:
                parts.replicas.quarantine.lost(suspect, state)
            raise


def _failed(request: RelayedRequest, state: ReplicaState, failure: ReplicaFailedError) -> None:
    retries, kind, replica_id = request.retries, failure.kind, state.replica_id
    request_id, progress = request.outgoing.request_id, request.reader.num_logged
    # A full one is well, and under overload there would be a line for each request.
    logger.log(
        logging.DEBUG if kind.is_full else logging.WARNING,
        "%s failed %s: %s",
        replica_id,
        request_id,
        failure,
        extra={"request_id": request_id, "served_by": replica_id},
    )
    request.refusal = kinder(failure.refusal, request.refusal)
    if kind.is_sick:
        state.breaker.failed()
    else:
        state.breaker.rest()
    if kind.is_loss:
        retries.lost(replica_id, progress=progress)
    elif kind.is_full:
        if kind is FailureKind.FULL and failure.refusal is not None:
            state.refused(wait_s(failure.refusal))
        retries.refused(replica_id)
    else:
        retries.failed(replica_id, progress=progress)


async def _gives_up(request: RelayedRequest, *, nobody_left: bool) -> bool:
    """Tell the client, if nothing more can be done."""
    client = request.client
    if request.suspect.is_refused:
        request_id = request.outgoing.request_id
        logger.warning(
            "%s is not tried again: %d replicas fell while it was alone there",
            request_id,
            MOST_ALONE,
            extra={"request_id": request_id, "served_by": request.replica_id},
        )
        await client.fail(replica_lost())
    elif not (request.retries.time_exhausted or _is_refused(request, nobody_left)):
        return False
    elif client.has_content:
        await client.fail(stream_broken())
    elif request.refusal is not None:
        await client.whole(*request.refusal)
    else:
        await client.fail(_nobody(request))
    return True


def _is_refused(request: RelayedRequest, nobody_left: bool) -> bool:
    """Whether it has to come back when there is room. Who was let in before is not."""
    if request.retries.was_lost or not (nobody_left or request.retries.refusals_exhausted):
        return False
    serving = request.parts.replicas.serving(request.outgoing.work.model)
    was_full = request.refusal is not None and request.refusal[0].status == 429
    return was_full or full_retry_after_s(serving) is not None


def _nobody(request: RelayedRequest) -> ApiError:
    model = request.outgoing.work.model
    serving = request.parts.replicas.serving(model)
    wait = full_retry_after_s(serving)
    if wait is not None:
        return no_room(model, wait)
    return no_replica(model, open_retry_after_s(serving))


async def _wait_in_line(request: RelayedRequest) -> None:
    request.retries.in_line()
    await request.parts.replicas.quarantine.wait_for_change(LOOKS_AGAIN_S)
    await _keep_alive(request.client)


async def _keep_alive(client: ClientResponse) -> None:
    """The silence that gave a replica away has lasted a while for the client, too."""
    if client.status:
        await client.events(sse.KEEP_ALIVE)
