"""What is sent, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ops.bench.serve.conversation import Conversation
from ops.bench.serve.target import Sampling


@dataclass(frozen=True)
class Load:
    """``concurrency`` alone is a closed loop: the next one begins as soon as one has ended.
    ``rate`` alone is an open one, whatever becomes of those before. Both: a bounded open loop."""

    conversations: Sequence[Conversation]
    concurrency: int | None = None
    """Most conversations at the same time; None: no bound."""
    rate: float = math.inf
    """Conversations that begin in a second, by a Poisson clock; infinite: all at once."""
    sampling: Sampling = field(default_factory=Sampling)
    warm_up: Sequence[Conversation] = ()
    """Sent before, as a closed loop, and not measured."""
    repeats: int = 0
    """How many of the conversations are held once more afterwards, to be answered the same."""
    silence_s: float = 600.0
    """With nothing from the server for so long, a request has failed."""
    seed: int = 0
    """Of the clock."""

    @property
    def num_requests(self) -> int:
        return sum(len(one.turns) for one in self.conversations)

    def arrivals(self) -> list[float]:
        """When each conversation begins, in seconds after the first one."""
        count = len(self.conversations)
        if math.isinf(self.rate):
            return [0.0] * count
        gaps = np.random.default_rng(self.seed).exponential(1 / self.rate, count)
        gaps[:1] = 0.0
        arrivals: list[float] = np.cumsum(gaps).tolist()
        return arrivals
