"""Circuit breakers, one a replica (Nygard, *Release It!*, 2007).

Closed: requests go through. After some failures without an answer in between it is open, and none
do. After its rest it is half-open: one request may probe, and its fate closes the breaker or opens
it for twice as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deployments.fleet.directory import Replica

FIRST_REST_S = 1.0
LONGEST_REST_S = 16.0
MAX_REMEMBERED = 1024


@dataclass
class _Breaker:
    num_failures: int = 0
    rest_s: float = 0.0
    """0 while it is closed."""
    open_until: float = 0.0
    probing: bool = False


class CircuitBreakers:
    """Those of all replicas that one gateway knows; ``now`` is in seconds."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, *, failures_to_open: int = 2
    ) -> None:
        self._now = now
        self._failures_to_open = failures_to_open
        self._breakers: dict[str, _Breaker] = {}
        """By replica id; one that has not failed since it answered has none."""

    def admits(self, replica: Replica) -> bool:
        breaker = self._breakers.get(replica.replica_id)
        return breaker is None or not (breaker.probing or self._now() < breaker.open_until)

    @contextmanager
    def request(self, replica: Replica) -> Iterator[None]:
        """A request to ``replica``, which is the probe of a half-open breaker. One that ends
        without ``succeeded`` or ``failed``, as when its client leaves, makes room for another."""
        breaker = self._breakers.get(replica.replica_id)
        if breaker is None or not breaker.rest_s:
            yield
            return
        breaker.probing = True
        try:
            yield
        finally:
            breaker.probing = False

    def succeeded(self, replica: Replica) -> None:
        """It has answered."""
        self._breakers.pop(replica.replica_id, None)

    def failed(self, replica: Replica) -> None:
        """It gave no answer."""
        now = self._now()
        breaker = self._breakers.setdefault(replica.replica_id, _Breaker())
        self._forget()
        breaker.num_failures += 1
        # While it is open, what had been on its way there fails too: that is no news.
        if breaker.num_failures >= self._failures_to_open and now >= breaker.open_until:
            breaker.rest_s = min(2 * breaker.rest_s or FIRST_REST_S, LONGEST_REST_S)
            breaker.open_until = now + breaker.rest_s

    def retry_after_s(self, replicas: Iterable[Replica]) -> int:
        """Whole seconds, at least 1, until one of ``replicas`` may be asked."""
        now = self._now()
        rests = [
            breaker.open_until - now
            for replica in replicas
            if (breaker := self._breakers.get(replica.replica_id))
        ]
        return max(1, math.ceil(min(rests, default=0.0)))

    def _forget(self) -> None:
        """Replicas that left never succeed again."""
        if len(self._breakers) > MAX_REMEMBERED:
            self._breakers.pop(next(iter(self._breakers)))
