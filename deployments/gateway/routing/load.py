"""Load: the tokens that this gateway has given each replica to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import exp2

MAX_REPLICAS = 1024


@dataclass
class _Load:
    tokens: int = 0
    sequences: int = 0
    fading: float = 0.0
    """Tokens of finished requests, as they were at ``faded_at``."""
    faded_at: float = 0.0


class LoadLedger:
    """Tokens that are outstanding, and those of finished requests, which fade.

    Without the second part a prefix that is asked for again and again, but never twice at the same
    time, would keep one replica busy and leave all others idle.
    """

    def __init__(self, *, half_life_s: float, now: Callable[[], float]) -> None:
        self._half_life_s = half_life_s
        self._now = now
        self._loads: defaultdict[str, _Load] = defaultdict(_Load)

    def load(self, replica_id: str) -> float:
        """In tokens."""
        one = self._loads.get(replica_id)
        return one.tokens + self._fading(one) if one else 0.0

    def num_sequences(self, replica_id: str) -> int:
        """Sequences that run there now."""
        one = self._loads.get(replica_id)
        return one.sequences if one else 0

    def started(self, replica_id: str, tokens: int, sequences: int) -> None:
        one = self._loads[replica_id]
        one.tokens += tokens
        one.sequences += sequences

    def finished(self, replica_id: str, tokens: int, sequences: int) -> None:
        one = self._loads[replica_id]
        one.tokens -= tokens
        one.sequences -= sequences
        one.fading = self._fading(one) + tokens
        one.faded_at = self._now()
        if len(self._loads) > MAX_REPLICAS:
            self._forget_the_idle()

    def _fading(self, one: _Load) -> float:
        return one.fading * exp2((one.faded_at - self._now()) / self._half_life_s)

    def _forget_the_idle(self) -> None:
        for replica_id in [name for name, one in self._loads.items() if one.sequences == 0]:
            del self._loads[replica_id]
