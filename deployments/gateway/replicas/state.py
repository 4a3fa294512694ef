"""The record of one replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deployments.fleet.directory import Replica
from deployments.gateway.replicas.capacity import Capacity, says_something
from deployments.gateway.replicas.circuit_breaker import CircuitBreaker
from deployments.gateway.replicas.load import Load
from deployments.gateway.replicas.pace import Pace
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.work import Work

FULL_S = 1.0
"""Another gateway's request may have made room since."""


@dataclass(eq=False)
class ReplicaState:
    """What a gateway knows of ``replica``. ``now`` is in seconds."""

    replica: Replica
    """As it is listed."""
    now: Callable[[], float]
    load: Load
    breaker: CircuitBreaker = field(init=False)
    pace: Pace = field(init=False)
    capacity: Capacity = field(default_factory=Capacity)
    last_turn: int = 0
    """The number of the latest request that was sent here, of all."""
    full_until: float = 0.0
    retry_after_s: int = 0
    """What it said when it was full."""
    present: set[Suspect] = field(default_factory=set)
    """Requests of this gateway that it has now."""
    on_trial: set[Suspect] = field(default_factory=set)
    """Those of them that enter one at a time."""

    def __post_init__(self) -> None:
        self.pace = Pace(self.now)
        self.answered()

    @property
    def replica_id(self) -> str:
        return self.replica.replica_id

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing of this gateway."""
        return not self.present

    @property
    def has_room(self) -> bool:
        """As far as is known here."""
        return self.now() >= self.full_until

    def answered(self) -> None:
        """It is well."""
        self.breaker = CircuitBreaker(self.now)

    def refused(self, retry_after_s: int) -> None:
        """It is full until a request that this gateway has there ends, or a while is over. Where
        this gateway has none, it has nothing to wait for and asks again."""
        if not self.is_idle:
            self.full_until = self.now() + FULL_S
            self.retry_after_s = retry_after_s

    @property
    def token_s(self) -> float | None:
        """Seconds that a token takes now, for a batch of one; None: it is unknown."""
        return self.pace.token_s(self.load.sequences)

    def streamed(self, work: Work, num_tokens: int, seconds: float) -> None:
        """One that is here has got ``num_tokens`` after the first, over all sequences, in so
        long."""
        each, sequences = num_tokens // work.num_sequences, self.load.sequences
        if says_something(each, seconds):
            self.capacity.streamed(num_tokens=each, seconds=seconds, num_sequences=sequences)
            self.pace.lap(num_tokens=each, seconds=seconds, num_sequences=sequences)

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        assert self.on_trial <= self.present, self
        assert self.load.sequences == sum(one.num_sequences for one in self.present), self
        assert self.present or not (self.load.tokens or self.load.uncached_tokens), self
        assert self.present or not self.breaker.is_probing, self
