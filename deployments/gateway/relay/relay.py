"""One request on its way through the replicas; the client has one answer, whoever is lost.

The gateway fixes what an answer's replicas must agree on (``envelope.py``). An answer that breaks
off is continued by another replica from the tokens behind what the gateway has of it
(``checkpoint.py``), whether the client has it streamed or whole; one that nobody has seen anything
of may begin anew, with the same seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.relay.attempt import Attempts, Limits, Outgoing
from deployments.gateway.relay.client_response import ClientResponse
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.relay.failures import (
    CannotResumeError,
    FailureKind,
    Refusal,
    ReplicaFailedError,
    kinder,
    no_replica,
    no_room,
    replica_lost,
    stream_broken,
    timed_out,
    wait_s,
)
from deployments.gateway.relay.full_replicas import FullReplicas
from deployments.gateway.relay.quarantine import MOST_ALONE, Quarantine, Suspect
from deployments.gateway.relay.retries import Backoff, Retries
from deployments.gateway.routing import Router, placed
from deployments.gateway.routing.circuit_breaker import CircuitBreakers
from deployments.http import sse
from deployments.http.errors import ApiError
from deployments.wire.checkpoint import CheckpointReader
from deployments.wire.envelope import Envelope

logger = logging.getLogger(__name__)

__all__ = ["Limits", "Outgoing", "Relay", "no_replica"]

LOOKS_AGAIN_S = 1.0
"""One who waits in line for a replica looks out for new ones, too."""


class Relay:
    """Sends ``outgoing`` to a replica that ``router`` picks, and its answer to the client.

    Cancelling ``run`` closes the connection to the replica, which frees the request there.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        *,
        directory: ReplicaDirectory,
        router: Router,
        breakers: CircuitBreakers,
        full: FullReplicas,
        quarantine: Quarantine,
        connections: ReplicaConnections,
        limits: Limits,
        on_first_content: Callable[[float], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._outgoing = outgoing
        self._directory = directory
        self._router = router
        self._breakers = breakers
        self._full = full
        self._quarantine = quarantine
        self._suspect = Suspect(outgoing.work.num_sequences)
        self._connections = connections
        self._limits = limits
        self._on_first_content = on_first_content
        self._reader = CheckpointReader()
        self._retries = Retries(
            max_refusals=limits.max_attempts,
            patience_s=limits.resume_timeout_s,
            backoff=backoff,
        )
        self._refusal: Refusal | None = None
        self._began: Replica | None = None
        """The replica that began the stream."""
        self.replica_id = ""
        """The replica that answered, or was tried last."""
        self.was_interrupted = False
        """Whether the stream has looked for another replica to go on at."""
        self.num_resumed = 0
        """How often another replica has gone on in the middle of the stream."""

    @property
    def prompt_tokens(self) -> int:
        """As replicas have told; 0: not at all."""
        return self._reader.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """That there have been so far, as replicas have told."""
        return self._reader.num_logged

    async def run(self, client: ClientResponse) -> None:
        """Relay until the client has a whole response, a replica's or an error."""
        try:
            async with asyncio.timeout(self._limits.request_timeout_s) as in_time:
                with self._quarantine.request(self._suspect):
                    await self._run(client, self._attempts(client, in_time))
        except TimeoutError:
            if not in_time.expired():
                raise
            await client.fail(timed_out(self._limits.request_timeout_s))

    async def _run(self, client: ClientResponse, attempts: Attempts) -> None:
        while True:
            candidates = self._candidates(client)
            able = self._quarantine.able(self._suspect, candidates)
            if candidates and not able:
                await self._wait_in_line(client)
                continue
            replica = self._router.choose(self._outgoing.work, able) if able else None
            if replica is not None:
                try:
                    await self._attempt(attempts, replica)
                    return
                except ReplicaFailedError as failure:
                    self._failed(replica, failure)
                except CannotResumeError as error:
                    logger.warning("%s can't resume: %s", replica.replica_id, error)
                    if client.has_content:
                        await client.fail(stream_broken())
                        return
                    self._reader.forget()
            if await self._gives_up(client, nobody_left=replica is None):
                return
            if replica is None:
                self._retries.nobody_left()
            await self._pause(client)

    def _attempts(self, client: ClientResponse, in_time: asyncio.Timeout) -> Attempts:
        def on_stream() -> None:
            self.num_resumed += self.was_interrupted

        return Attempts(
            self._outgoing,
            Envelope.seal(tenant=self._outgoing.tenant, priority=self._outgoing.priority),
            self._reader,
            client,
            self._connections,
            self._limits,
            in_time,
            on_stream,
            self._on_first_content,
        )

    def _candidates(self, client: ClientResponse) -> list[Replica]:
        return [
            replica
            for replica in self._directory.serving(self._outgoing.work.model)
            if replica.replica_id not in self._retries.tried
            and self._breakers.admits(replica)
            # An answer that goes on was let in before, and needs no place in a queue.
            and (self._reader.log or self._full.has_room(replica))
            and (not client.has_content or self._began is None or replica.continues(self._began))
        ]

    async def _attempt(self, attempts: Attempts, replica: Replica) -> None:
        self.replica_id = replica.replica_id
        if not attempts.client.has_content:
            changes = self._began is not None and not replica.continues(self._began)
            if changes or self._outgoing.begins_anew:
                self._reader.forget()
            self._began = replica
        self.was_interrupted = attempts.client.has_content or (
            not self._outgoing.stream and self._reader.num_logged > 0
        )
        with (
            self._breakers.request(replica),
            self._full.request(replica),
            self._quarantine.attempt(self._suspect, replica),
            placed(self._router, self._outgoing.work, replica),
        ):
            try:
                await attempts.make(
                    replica,
                    partial(self._breakers.succeeded, replica),
                    partial(self._quarantine.went_on, self._suspect, replica),
                )
            except ReplicaFailedError as failure:
                if failure.kind.is_loss:
                    self._quarantine.lost(self._suspect, replica)
                raise
        self._router.answered(replica)

    def _failed(self, replica: Replica, failure: ReplicaFailedError) -> None:
        request_id = self._outgoing.request_id
        kind = failure.kind
        # A full one is well, and under overload there would be a line for each request.
        logger.log(
            logging.DEBUG if kind is FailureKind.FULL else logging.WARNING,
            "%s failed %s: %s",
            replica.replica_id,
            request_id,
            failure,
            extra={"request_id": request_id, "served_by": replica.replica_id},
        )
        self._router.failed(replica)
        self._refusal = kinder(failure.refusal, self._refusal)
        if kind.is_sick:
            self._breakers.failed(replica)
        if kind.is_loss:
            self._retries.lost(replica.replica_id, progress=self._reader.num_logged)
        elif kind is FailureKind.FULL:
            if failure.refusal is not None:
                self._full.refused(replica, wait_s(failure.refusal))
            self._retries.refused(replica.replica_id)
        else:
            self._retries.failed(replica.replica_id, progress=self._reader.num_logged)

    async def _gives_up(self, client: ClientResponse, *, nobody_left: bool) -> bool:
        """Tell the client, if nothing more can be done."""
        if self._suspect.is_refused:
            request_id = self._outgoing.request_id
            logger.warning(
                "%s is not tried again: %d replicas fell while it was alone there",
                request_id,
                MOST_ALONE,
                extra={"request_id": request_id, "served_by": self.replica_id},
            )
            await client.fail(replica_lost())
        elif not (self._retries.time_exhausted or self._is_refused(nobody_left)):
            return False
        elif client.has_content:
            await client.fail(stream_broken())
        elif self._refusal is not None:
            await client.whole(*self._refusal)
        else:
            await client.fail(self._nobody())
        return True

    def _is_refused(self, nobody_left: bool) -> bool:
        """Whether it has to come back when there is room. Who was let in before is not."""
        if self._retries.was_lost or not (nobody_left or self._retries.refusals_exhausted):
            return False
        serving = self._directory.serving(self._outgoing.work.model)
        was_full = self._refusal is not None and self._refusal[0].status == 429
        return was_full or self._full.retry_after_s(serving) is not None

    def _nobody(self) -> ApiError:
        model = self._outgoing.work.model
        serving = self._directory.serving(model)
        wait = self._full.retry_after_s(serving)
        if wait is not None:
            return no_room(model, wait)
        return no_replica(model, self._breakers.retry_after_s(serving))

    async def _pause(self, client: ClientResponse) -> None:
        await _keep_alive(client)
        await asyncio.sleep(self._retries.delay_s())

    async def _wait_in_line(self, client: ClientResponse) -> None:
        self._retries.in_line()
        await self._quarantine.wait_for_change(LOOKS_AGAIN_S)
        await _keep_alive(client)


async def _keep_alive(client: ClientResponse) -> None:
    """The silence that gave a replica away has lasted a while for the client, too."""
    if client.status:
        await client.comment(sse.KEEP_ALIVE)
