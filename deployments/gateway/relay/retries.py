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
    """``max_attempts`` are for a request that has sent nothing yet; a stream that broke has
    ``resume_timeout_s`` seconds to go on, each time."""

    def __init__(
        self,
        *,
        max_attempts: int,
        resume_timeout_s: float,
        backoff: Backoff | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_attempts = max_attempts
        self._resume_timeout_s = resume_timeout_s
        self._backoff = backoff or Backoff()
        self._now = now
        self.tried: set[str] = set()
        """Ids of replicas that have had their turn."""
        self._num_attempts = 0
        self._num_failures = 0
        self._progress = 0
        self._give_up_at: float | None = None

    @property
    def attempts_exhausted(self) -> bool:
        return self._num_attempts >= self._max_attempts

    @property
    def time_exhausted(self) -> bool:
        return self._give_up_at is not None and self._now() >= self._give_up_at

    def failed(self, replica_id: str, *, progress: int) -> None:
        """``progress``: tokens so far, about."""
        if self._give_up_at is None or progress > self._progress:
            self._give_up_at = self._now() + self._resume_timeout_s
            self._num_failures = 0
            self.tried.clear()
        self._progress = progress
        self._num_attempts += 1
        self._num_failures += 1
        self.tried.add(replica_id)

    def in_line(self) -> None:
        """There is somebody, who is busy with others that were resumed: time begins anew."""
        self._give_up_at = self._now() + self._resume_timeout_s

    def nobody_left(self) -> None:
        """All have had their turn: the pause gets longer, and then they get another one."""
        self._num_failures += 1
        self.tried.clear()

    def delay_s(self) -> float:
        return self._backoff.delay_s(self._num_failures)
