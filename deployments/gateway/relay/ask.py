"""A question that any replica of a model answers alike, and at once: it makes nobody a suspect, and
has no place in a queue of the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from deployments.gateway.relay.client_response import Head
from deployments.gateway.relay.connections import ConnectionLostError, UnreachableError
from deployments.gateway.relay.failures import (
    Refusal,
    ReplicaFailedError,
    check_failure,
    kinder,
    no_replica,
)
from deployments.gateway.relay.parts import RelayParts
from deployments.gateway.replicas.state import ReplicaState
from deployments.wire.failure import FAILURE_HEADER

logger = logging.getLogger(__name__)

Told = tuple[Head, bytes]


async def ask(
    parts: RelayParts, model: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[str, Told]:
    """The id of the first replica of ``model`` that has an answer, the least busy one first, and
    what it says. Raises ``ApiError`` if none has any."""
    refusal: Refusal | None = None
    for state in sorted(parts.replicas.serving(model), key=_order):
        try:
            return state.replica_id, await _ask(parts, state, path, body, headers)
        except ReplicaFailedError as failure:
            refusal = kinder(refusal, failure.refusal)
            reason = str(failure)
        except (UnreachableError, ConnectionLostError, TimeoutError) as error:
            reason = str(error)
        logger.warning("%s does not answer %s: %s", state.replica_id, path, reason)
    if refusal is None:
        raise no_replica(model)
    return "", refusal


def _order(state: ReplicaState) -> tuple[bool, bool, float]:
    return not state.breaker.admits, state.breaker.is_resting, state.load.tokens


async def _ask(
    parts: RelayParts, state: ReplicaState, path: str, body: bytes, headers: Mapping[str, str]
) -> Told:
    replica, settings = state.replica, parts.settings
    async with parts.connections.request(
        "POST",
        replica.url,
        path,
        body=body,
        headers={
            "Authorization": f"Bearer {replica.secret}",
            "Content-Type": "application/json",
            **headers,
        },
        connect_timeout_s=settings.connect_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
    ) as response:
        head, told = Head.of(response), await response.read()
        failure = response.header(FAILURE_HEADER)
    check_failure(None if failure is None else failure.decode("latin-1"), head, told)
    return head, told
