"""Pace: how long a token takes at one replica now, from the streams that run there.

A capacity is an average of many streams. A host that something else slows down is slow at once, and
its streams may go without a token for long: the wait so far counts, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from deployments.gateway.replicas.capacity import BATCH, LAP_S, MAX_WEIGHT
from deployments.gateway.replicas.work import Work

if TYPE_CHECKING:
    from deployments.gateway.replicas.state import ReplicaState

LATEST_LAPS = 4
"""About as many are averaged."""
SILENT_S = 6.0
"""A shorter wait is no news: text may be held back, and its tokens with it, until a keep-alive."""
FRESH_S = 30.0
"""The pace is unknown so long after the last token, unless a stream waits for the next."""
SLOW = 4.0
"""Times the median time per token, from which on a replica is slow."""


@dataclass
class Pace:
    """``now`` is in seconds. Times per token are those of a batch of one: see ``BATCH``."""

    now: Callable[[], float]
    waiting: int = 0
    """Streams that have a token and wait for the next."""
    _since: float = 0.0
    """The last token of any stream, or the first wait after it."""
    _token_s: float | None = None

    def begin_wait(self) -> None:
        if not self.waiting:
            self._since = self.now()
        self.waiting += 1

    def end_wait(self) -> None:
        self.waiting -= 1

    def heard(self) -> None:
        """Some stream has got a token."""
        self._since = self.now()

    def lap(self, *, num_tokens: int, seconds: float, num_sequences: int) -> None:
        """A sequence, one of ``num_sequences`` there, waited ``seconds`` for ``num_tokens``."""
        token_s = seconds / num_tokens / (num_sequences + BATCH)
        before = token_s if self._token_s is None else self._token_s
        self._token_s = before + (token_s - before) / LATEST_LAPS
        self.heard()

    def token_s(self, num_sequences: int) -> float | None:
        """None: it is unknown."""
        silent_s = self.now() - self._since
        if self.waiting and silent_s >= SILENT_S:
            return max(self._token_s or 0.0, silent_s / (num_sequences + BATCH))
        return self._token_s if self.waiting or silent_s < FRESH_S else None


class StreamTimer:
    """Times one stream of a replica. A wait for the client does not count."""

    def __init__(self, state: ReplicaState, work: Work, num_tokens: int) -> None:
        """``num_tokens``: those that the stream has from earlier replicas."""
        self._state = state
        self._work = work
        self._num_tokens = self._lap_began_with = num_tokens
        self._has_begun = False
        self._waited_s = 0.0

    async def wait(self, reading: Awaitable[bytes]) -> bytes:
        if not self._has_begun:
            return await reading
        pace, began = self._state.pace, self._state.now()
        pace.begin_wait()
        try:
            return await reading
        finally:
            pace.end_wait()
            self._waited_s += self._state.now() - began

    def got(self, num_tokens: int) -> None:
        """The stream has ``num_tokens``."""
        if num_tokens == self._num_tokens:
            return
        self._num_tokens = num_tokens
        self._state.pace.heard()
        if not self._has_begun:
            self._has_begun = True
            self._lap_began_with = num_tokens
        elif self._waited_s >= LAP_S:
            self.end_lap()

    def end_lap(self) -> None:
        num_tokens = self._num_tokens - self._lap_began_with
        self._state.streamed(self._work, num_tokens, self._waited_s)
        self._lap_began_with, self._waited_s = self._num_tokens, 0.0


def slowdowns(times: Sequence[float | None], weights: Sequence[float]) -> list[float]:
    """By how much each time per token exceeds the median, as ``weights`` would have it: 1 for all
    that are not slow, and where the time is unknown."""
    weighed = [0.0 if one is None else one * by for one, by in zip(times, weights, strict=True)]
    known = [one for one in weighed if one]
    middle = median_low(known) if known else 0.0
    return [min(one / middle, MAX_WEIGHT) if one > SLOW * middle else 1.0 for one in weighed]
