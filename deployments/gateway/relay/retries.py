"""How long to keep trying for one request: attempts, and the pauses between them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential, with full jitter (Brooker, "Exponential Backoff And Jitter", 2015)."""

    first_s: float = 0.1
    longest_s: float = 2.0
    random: Callable[[], float] = random.random
    """Uniform in [0, 1)."""

    def delay_s(self, num_failures: int) -> float:
        """The pause after so many failures in a row. After one there is none: whoever is asked
        next has not failed."""
        if num_failures <= 1:
            return 0.0
        return self.random() * min(self.longest_s, self.first_s * 2.0 ** min(num_failures - 2, 30))


class Retries:
    """A request that nobody has had yet may be refused by ``max_refusals`` full replicas. Whatever
    else keeps a request from its answer, there are ``patience_s`` seconds for a replica to take
    it, which begin anew with each loss and whenever it has got on."""

    def __init__(
        self,
        *,
        max_refusals: int,
        patience_s: float,
        backoff: Backoff | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_refusals = max_refusals
        self._patience_s = patience_s
        self._backoff = backoff or Backoff()
        self._now = now
        self.tried: set[str] = set()
        """Ids of replicas that have had their turn."""
        self.was_lost = False
        """Whether a replica had the request and fell."""
        self._num_refusals = 0
        self._num_failures = 0
        self._progress = 0
        self._give_up_at: float | None = None

    @property
    def refusals_exhausted(self) -> bool:
        return self._num_refusals >= self._max_refusals

    @property
    def time_exhausted(self) -> bool:
        return self._give_up_at is not None and self._now() >= self._give_up_at

    def refused(self, replica_id: str) -> None:
        """It has no room."""
        self._num_refusals += 1
        self.failed(replica_id, progress=self._progress)

    def lost(self, replica_id: str, *, progress: int) -> None:
        """It fell while it had the request."""
        self.was_lost = True
        self._give_up_at = None
        self.failed(replica_id, progress=progress)

    def failed(self, replica_id: str, *, progress: int) -> None:
        """It has the request no more, or never had it. ``progress``: tokens so far, about."""
        if progress > self._progress:
            self._give_up_at = None
            self._num_failures = 0
            self.tried.clear()
        self._progress = progress
        self._begin_to_wait()
        self._num_failures += 1
        self.tried.add(replica_id)

    def in_line(self) -> None:
        """There is somebody, who is busy with others that were resumed: time begins anew."""
        self._give_up_at = None
        self._begin_to_wait()

    def nobody_left(self) -> None:
        """All have had their turn: the pause gets longer, and then they get another one."""
        self._begin_to_wait()
        self._num_failures += 1
        self.tried.clear()

    def delay_s(self) -> float:
        return self._backoff.delay_s(self._num_failures)

    def _begin_to_wait(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = self._now() + self._patience_s
