"""Which replica a request goes to: decided in the gateway, alone, without asking anybody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from deployments.directory import Replica


@dataclass(frozen=True)
class Work:
    """What a router may know of a request."""

    model: str
    tokens: int
    """Estimated prompt tokens plus the most that may be generated."""


class Router(Protocol):
    def choose(self, work: Work, candidates: Sequence[Replica]) -> Replica:
        """One of ``candidates``, which is never empty."""
        ...

    def started(self, work: Work, replica: Replica) -> None: ...

    def finished(self, work: Work, replica: Replica) -> None: ...


@contextmanager
def placed(router: Router, work: Work, replica: Replica) -> Iterator[None]:
    """Count ``work`` on ``replica`` for as long as the block runs."""
    router.started(work, replica)
    try:
        yield
    finally:
        router.finished(work, replica)


class LeastOutstandingTokens:
    """The replica with the fewest tokens that this gateway has sent it and not seen finished.

    Equal replicas take turns: the one that was chosen longest ago comes first.
    """

    def __init__(self) -> None:
        self._outstanding: defaultdict[str, int] = defaultdict(int)
        self._last_chosen: dict[str, int] = {}
        self._turn = 0

    def outstanding(self, replica: Replica) -> int:
        """Tokens on ``replica`` now."""
        return self._outstanding.get(replica.replica_id, 0)

    def choose(self, work: Work, candidates: Sequence[Replica]) -> Replica:
        return min(
            candidates,
            key=lambda replica: (
                self.outstanding(replica),
                self._last_chosen.get(replica.replica_id, -1),
            ),
        )

    def started(self, work: Work, replica: Replica) -> None:
        self._turn += 1
        self._last_chosen[replica.replica_id] = self._turn
        self._outstanding[replica.replica_id] += work.tokens

    def finished(self, work: Work, replica: Replica) -> None:
        self._outstanding[replica.replica_id] -= work.tokens
        if self._outstanding[replica.replica_id] == 0:
            del self._outstanding[replica.replica_id]
            # Replicas come and go; an idle one's turn matters only while others are idle too.
            if len(self._last_chosen) > 4096:
                self._last_chosen.clear()


ROUTERS: dict[str, type[Router]] = {"least_outstanding_tokens": LeastOutstandingTokens}
