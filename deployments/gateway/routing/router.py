"""The ``Router`` protocol: what a router is asked and told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from deployments.fleet.directory import Replica
from deployments.gateway.routing.affinity import NO_AFFINITY, Affinity


@dataclass(frozen=True)
class Work:
    """What a router may know of a request."""

    model: str
    tokens: int
    """Estimated prompt tokens plus the most that may be generated."""
    affinity: Affinity = NO_AFFINITY
    num_sequences: int = 1
    """Continuations that are generated at the same time."""


class Router(Protocol):
    def choose(self, work: Work, candidates: Sequence[Replica]) -> Replica:
        """One of ``candidates``, which is never empty."""
        ...

    def started(self, work: Work, replica: Replica) -> None: ...

    def finished(self, work: Work, replica: Replica) -> None: ...

    def failed(self, replica: Replica) -> None:
        """It refused a request, or gave no answer."""
        ...

    def answered(self, replica: Replica) -> None:
        """It gave a whole answer."""
        ...

    def streamed(self, work: Work, replica_id: str, num_tokens: int, seconds: float) -> None:
        """It sent ``num_tokens`` after the first of a stream, over all sequences, in so long."""
        ...


@contextmanager
def placed(router: Router, work: Work, replica: Replica) -> Iterator[None]:
    """Count ``work`` on ``replica`` for as long as the block runs."""
    router.started(work, replica)
    try:
        yield
    finally:
        router.finished(work, replica)
