"""Load: the tokens that this gateway has given one replica to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp2


@dataclass
class Load:
    """Tokens that are outstanding, and those of finished requests, which fade.

    Without the second part a prefix that is asked for again and again, but never twice at the same
    time, would keep one replica busy and leave all others idle.
    """

    now: Callable[[], float]
    half_life_s: float
    tokens: int = 0
    """Outstanding."""
    uncached_tokens: int = 0
    """Those of them that the replica has not had before."""
    sequences: int = 0
    """That run there now."""
    _fading: float = 0.0
    """Tokens of finished requests, as they were at ``_faded_at``."""
    _faded_at: float = 0.0

    @property
    def recent_tokens(self) -> float:
        """Outstanding, with what is left of those that were a moment ago."""
        return self.tokens + self._still_fading()

    def started(self, tokens: int, sequences: int, *, cached_tokens: int = 0) -> None:
        self.tokens += tokens
        self.uncached_tokens += tokens - cached_tokens
        self.sequences += sequences

    def finished(self, tokens: int, sequences: int, *, cached_tokens: int = 0) -> None:
        self.tokens -= tokens
        self.uncached_tokens -= tokens - cached_tokens
        self.sequences -= sequences
        self._fading = self._still_fading() + tokens
        self._faded_at = self.now()

    def _still_fading(self) -> float:
        return self._fading * exp2((self._faded_at - self.now()) / self.half_life_s)
