"""Which replicas have no room, so that a crowd is refused here and not by each of them in turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from deployments.fleet.directory import Replica

HOLDS_S = 1.0
"""Another gateway's request may have made room since."""


class FullReplicas:
    """One that refused a request is full until one that this gateway has there ends, or a second is
    over. Where this gateway has none, it has nothing to wait for and asks again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._num_requests: Counter[str] = Counter()
        self._full: dict[str, tuple[float, int]] = {}
        """By replica id: until when, and the seconds that a refused client was to wait."""

    @contextmanager
    def request(self, replica: Replica) -> Iterator[None]:
        """A request that ``replica`` has for as long as the block runs."""
        name = replica.replica_id
        self._num_requests[name] += 1
        try:
            yield
        finally:
            self._full.pop(name, None)
            self._num_requests[name] -= 1
            if not self._num_requests[name]:
                del self._num_requests[name]

    def refused(self, replica: Replica, retry_after_s: int) -> None:
        """It said that it has no room."""
        if replica.replica_id in self._num_requests:
            self._full[replica.replica_id] = self._now() + HOLDS_S, retry_after_s

    def has_room(self, replica: Replica) -> bool:
        """As far as is known here."""
        until, _ = self._full.get(replica.replica_id, (0.0, 0))
        return self._now() >= until

    def retry_after_s(self, replicas: Iterable[Replica]) -> int | None:
        """The shortest that one of those ``replicas`` that are full has named."""
        waits = [self._full[one.replica_id][1] for one in replicas if not self.has_room(one)]
        return min(waits, default=None)
