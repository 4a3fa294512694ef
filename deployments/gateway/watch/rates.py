"""Tokens a second, from an engine's counters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

WINDOW_S = 3.0
"""Over which the rate of now is taken; longer if there was no reading for longer."""
HISTORY_EVERY_S = 10.0
MOST_HISTORY = 60
"""Rates, and so ten minutes."""


@dataclass(frozen=True)
class Sample:
    at: float
    """In seconds."""
    prompt_tokens: int
    generation_tokens: int


@dataclass
class Rates:
    """Of one engine."""

    _live: deque[Sample] = field(default_factory=deque)
    _marks: deque[Sample] = field(default_factory=lambda: deque(maxlen=MOST_HISTORY + 1))

    def add(self, sample: Sample) -> None:
        self._live.append(sample)
        while len(self._live) > 2 and self._live[1].at <= sample.at - WINDOW_S:
            self._live.popleft()
        if not self._marks or sample.at - self._marks[-1].at >= HISTORY_EVERY_S:
            self._marks.append(sample)

    def stop(self) -> None:
        """It makes no tokens until the next sample."""
        self._live.clear()

    @property
    def now(self) -> tuple[float, float]:
        """Of prompts and of generated tokens."""
        if len(self._live) < 2:
            return 0.0, 0.0
        return _rates(self._live[0], self._live[-1])

    @property
    def generation_history(self) -> list[float]:
        """Of the last ten minutes, the latest last: one for each ``HISTORY_EVERY_S``."""
        return [_rates(*pair)[1] for pair in pairwise(self._marks)]


def _rates(first: Sample, last: Sample) -> tuple[float, float]:
    seconds = last.at - first.at
    if seconds <= 0.0:
        return 0.0, 0.0
    prompt = (last.prompt_tokens - first.prompt_tokens) / seconds
    generation = (last.generation_tokens - first.generation_tokens) / seconds
    return round(prompt, 1), round(generation, 1)
