"""One request on its way through the replicas: what is sent, and what it has come to so far."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from deployments.fleet.directory import Replica
from deployments.gateway.relay.client_response import ClientResponse, Keeper
from deployments.gateway.relay.failures import Refusal
from deployments.gateway.relay.parts import RelayParts
from deployments.gateway.relay.resumable import ResumableReader
from deployments.gateway.relay.retries import Retries
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.routing import Placement, Work
from deployments.protocol import StreamForm
from deployments.wire.checkpoint import CheckpointReader
from deployments.wire.envelope import Envelope


@dataclass(frozen=True)
class CutOff:
    """An attempt that was left before the end of its answer had come."""

    replica: Replica
    attempt: str


@dataclass(frozen=True)
class Outgoing:
    """A validated request as the replicas get it."""

    path: str
    body: bytes
    """The client's, and behind it what it refers to."""
    stream: bool
    stream_form: StreamForm
    request_id: str
    work: Work
    envelope: Envelope
    begins_anew: bool = False
    """Whether another replica can't go on with its answer: a log has no logprobs."""
    resumable: ResumableReader | None = None
    """Of a stream whose client may come back, or has come back, to have the rest of it."""
    keeper: Keeper | None = None
    """Who keeps the answer, if anybody does."""
    tells_server: bool = False
    """Whether comments in a stream tell which replica its events come from."""

    @property
    def goes_on(self) -> bool:
        """Whether the client has the beginning of the answer, from another gateway perhaps."""
        return self.resumable is not None and self.resumable.lineage is not None


@dataclass(eq=False)
class RelayedRequest:
    """State that all attempts at one request share. The deadline counts from the arrival."""

    outgoing: Outgoing
    parts: RelayParts
    client: ClientResponse
    arrived: float
    """By ``time.perf_counter``."""
    sent_at: float = 0.0
    """The latest attempt, by the same clock."""
    attempt_id: str = ""
    """What the replica knows the latest attempt by."""
    state: ReplicaState | None = None
    """Of the replica that answered, or was tried last."""
    placement: Placement | None = None
    """What was known of the prompt when it was sent for the first time."""
    refusal: Refusal | None = None
    """The kindest so far."""
    was_interrupted: bool = False
    """Whether the stream has looked for another replica to go on at."""
    is_answered: bool = False
    """Whether the end of the answer has come."""
    cut_off: CutOff | None = None
    served_by: Replica | None = None
    """Where the latest tokens came from."""
    num_resumed: int = 0
    """How often another replica has gone on in the middle of the stream."""
    reader: CheckpointReader = field(init=False)
    lineage: tuple[str, int] | None = field(init=False)
    """Of the replica that began the stream."""
    suspect: Suspect = field(init=False)
    retries: Retries = field(init=False)
    in_time: asyncio.Timeout = field(init=False)
    """Ends the request at its deadline."""

    def __post_init__(self) -> None:
        outgoing, settings = self.outgoing, self.parts.settings
        self.reader = outgoing.resumable or CheckpointReader()
        self.lineage = outgoing.resumable.lineage if outgoing.resumable else None
        self.suspect = Suspect(outgoing.work.num_sequences)
        self.retries = Retries(
            max_refusals=settings.max_attempts,
            patience_s=self.parts.patience_s(outgoing.work.model),
        )
        elapsed_s = time.perf_counter() - self.arrived
        self.in_time = asyncio.timeout(settings.request_timeout_s - elapsed_s)

    @property
    def replica_id(self) -> str:
        return self.state.replica_id if self.state else ""

    @property
    def has_ended(self) -> bool:
        """Whether no replica works on it any more: it is answered or refused."""
        return self.is_answered or self.client.refusal is not None
