"""Least-outstanding-tokens routing: the least loaded replica, whatever it has cached."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from deployments.fleet.directory import Replica
from deployments.gateway.routing.circuit_breaker import CircuitBreakers
from deployments.gateway.routing.router import Work


class LeastOutstandingTokens:
    """The replica with the fewest tokens that this gateway has sent it and not seen finished.

    Equal replicas take turns: the one that was chosen longest ago comes first. One that has just
    failed comes last: it has few tokens outstanding because it refuses, not because it is fast.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._breakers = CircuitBreakers(now, failures_to_open=1)
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
                not self._breakers.admits(replica),
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

    def failed(self, replica: Replica) -> None:
        self._breakers.failed(replica)

    def answered(self, replica: Replica) -> None:
        self._breakers.succeeded(replica)

    def streamed(self, work: Work, replica_id: str, num_tokens: int, seconds: float) -> None:
        """Slow replicas have more outstanding; nothing else is made of it."""
