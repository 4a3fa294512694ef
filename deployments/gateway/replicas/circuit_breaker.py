"""The circuit breaker of one replica (Nygard, *Release It!*, 2007).

A replica that has just failed rests: others are asked first. After some failures without an answer
in between its breaker is open, and it is not asked at all. After its rest the breaker is half-open:
one request may probe, and its fate closes the breaker or opens it for twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FAILURES_TO_OPEN = 2
FIRST_REST_S = 1.0
LONGEST_REST_S = 16.0


@dataclass
class CircuitBreaker:
    """Closed, until it is told of failures. One that has answered gets a new one."""

    now: Callable[[], float]
    num_failures: int = 0
    rest_s: float = 0.0
    rests_until: float = 0.0
    is_probing: bool = False

    @property
    def rest_left_s(self) -> float:
        return self.rests_until - self.now()

    @property
    def is_resting(self) -> bool:
        return self.rest_left_s > 0

    @property
    def is_closed(self) -> bool:
        return self.num_failures < FAILURES_TO_OPEN

    @property
    def admits(self) -> bool:
        return self.is_closed or not (self.is_probing or self.is_resting)

    def failed(self) -> None:
        """The next request would fail, too."""
        self.num_failures += 1
        self.rest()

    def rest(self) -> None:
        """Have others asked first."""
        # While it rests, what had been on its way there fails too: that is no news.
        if not self.is_resting:
            self.rest_s = min(2 * self.rest_s or FIRST_REST_S, LONGEST_REST_S)
            self.rests_until = self.now() + self.rest_s
