"""Capacity estimates: how fast each replica is, from the streams that passed through this gateway.

What a replica delivers says as much about what it was asked for as about what it can do. So each
lap of a stream is judged by its own speed and by how many shared the replica with it: where n
sequences run at once, each gets C / (n + BATCH) tokens a second of a replica with the capacity C.
Many sequences share all there is; a few are each as fast as the memory allows, and leave the rest
unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from statistics import median_low

BATCH = 8
"""Sequences with which a step takes twice as long as with one."""
LAP_S = 5.0
"""A stream that runs is measured again after each lap."""
MIN_TOKENS = 8
"""Of a shorter lap that ends early, with its stream, the time says little."""
MIN_STREAMS = 32
"""Laps after which a replica's capacity is believed."""
MEMORY_STREAMS = 128
"""About as many of the last laps are averaged."""
STEPS_PER_OCTAVE = 2
RELUCTANCE = 0.7
"""Steps by which a weight must be wrong before it changes: more than the half of rounding."""
MAX_WEIGHT = 16.0


@dataclass
class Capacity:
    """Of one replica, as measured."""

    log_capacity: float = 0.0
    """Mean of log2 of tokens a second."""
    num_streams: int = 0
    level: int = 0
    """The weight, in steps from that of the replica in the middle."""

    @property
    def is_believed(self) -> bool:
        return self.num_streams >= MIN_STREAMS

    @property
    def weight(self) -> float:
        weight = 2.0 ** (self.level / STEPS_PER_OCTAVE) if self.is_believed else 1.0
        return float(min(max(weight, 1.0 / MAX_WEIGHT), MAX_WEIGHT))

    def streamed(self, *, num_tokens: int, seconds: float, num_sequences: int) -> None:
        """A sequence, one of ``num_sequences`` there, got ``num_tokens`` in ``seconds``."""
        if not says_something(num_tokens, seconds):
            return
        capacity = log2(num_tokens / seconds * (num_sequences + BATCH))
        self.num_streams += 1
        self.log_capacity += (capacity - self.log_capacity) / min(self.num_streams, MEMORY_STREAMS)


def says_something(num_tokens: int, seconds: float) -> bool:
    """Whether a speed can be told from that."""
    return num_tokens > 0 and seconds > 0.0 and (num_tokens >= MIN_TOKENS or seconds >= LAP_S)


def weights(capacities: Sequence[Capacity]) -> list[float]:
    """Relative capacities in coarse steps: 1 for all who are about equal, so that keys stay where
    they are, and for who has not been measured."""
    known = [one for one in capacities if one.is_believed]
    if len(known) < 2:
        return [1.0] * len(capacities)
    middle = median_low(one.log_capacity for one in known)
    for one in known:
        steps = (one.log_capacity - middle) * STEPS_PER_OCTAVE
        if abs(steps - one.level) > RELUCTANCE:
            one.level = round(steps)
    return [one.weight for one in capacities]
