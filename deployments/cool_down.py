"""Which replicas failed a moment ago, and so should not be the first choice."""

from __future__ import annotations

import time
from collections.abc import Callable

from deployments.directory import Replica

FIRST_REST_S = 1.0
LONGEST_REST_S = 16.0


class CoolDown:
    """A replica that fails rests; one that fails again after its rest does so twice as long."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._rests: dict[str, tuple[float, float]] = {}
        """Replica id to the end of its last rest and that rest's length, in seconds."""

    def rests(self, replica: Replica) -> bool:
        until, _ = self._rests.get(replica.replica_id, (0.0, 0.0))
        return self._now() < until

    def failed(self, replica: Replica) -> None:
        if self.rests(replica):
            # Whatever was on its way there fails together, and says no more than the first.
            return
        _, last = self._rests.get(replica.replica_id, (0.0, FIRST_REST_S / 2))
        rest = min(2 * last, LONGEST_REST_S)
        self._rests[replica.replica_id] = (self._now() + rest, rest)

    def answered(self, replica: Replica) -> None:
        self._rests.pop(replica.replica_id, None)

    def forget(self) -> None:
        self._rests.clear()
