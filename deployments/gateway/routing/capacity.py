"""Capacity estimates: how fast each replica is, from the streams that passed through this gateway.

What a replica delivers says as much about what it was asked for as about what it can do. So each
stream is judged by its own speed and by how many shared the replica with it: where n sequences run
at once, each gets C / (n + BATCH) tokens a second of a replica with the capacity C. Many sequences
share all there is; a few are each as fast as the memory allows, and leave the rest unused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from statistics import median_low

BATCH = 8
"""Sequences with which a step takes twice as long as with one."""
MIN_TOKENS = 8
"""Of a shorter stream the time says little."""
MIN_STREAMS = 32
"""Streams after which a replica's capacity is believed."""
MEMORY_STREAMS = 128
"""About as many of the last streams are averaged."""
STEPS_PER_OCTAVE = 2
RELUCTANCE = 0.7
"""Steps by which a weight must be wrong before it changes: more than the half of rounding."""
MAX_WEIGHT = 16.0
MAX_REPLICAS = 1024


@dataclass
class _Measured:
    log_capacity: float = 0.0
    """Mean of log2 of tokens a second."""
    num_streams: int = 0
    level: int = 0
    """The weight, in steps from that of the replica in the middle."""


class Capacity:
    """Weights in coarse steps: 1 for all who are about equal, so that keys stay where they are."""

    def __init__(self) -> None:
        self._measured: OrderedDict[str, _Measured] = OrderedDict()

    def streamed(
        self, replica_id: str, *, num_tokens: int, seconds: float, num_sequences: int
    ) -> None:
        """A sequence, one of ``num_sequences`` there, got ``num_tokens`` in ``seconds``."""
        if num_tokens < MIN_TOKENS or seconds <= 0.0:
            return
        one = self._measured.setdefault(replica_id, _Measured())
        self._measured.move_to_end(replica_id)
        if len(self._measured) > MAX_REPLICAS:
            self._measured.popitem(last=False)
        capacity = log2(num_tokens / seconds * (num_sequences + BATCH))
        one.num_streams += 1
        one.log_capacity += (capacity - one.log_capacity) / min(one.num_streams, MEMORY_STREAMS)

    def weights(self, replica_ids: Sequence[str]) -> list[float]:
        """Relative capacities, one for each; who has not been measured is in the middle."""
        known = [one for name in replica_ids if (one := self._believed(name))]
        if len(known) < 2:
            return [1.0] * len(replica_ids)
        middle = median_low(one.log_capacity for one in known)
        for one in known:
            steps = (one.log_capacity - middle) * STEPS_PER_OCTAVE
            if abs(steps - one.level) > RELUCTANCE:
                one.level = round(steps)
        return [self._weight(name) for name in replica_ids]

    def _believed(self, replica_id: str) -> _Measured | None:
        one = self._measured.get(replica_id)
        return one if one and one.num_streams >= MIN_STREAMS else None

    def _weight(self, replica_id: str) -> float:
        one = self._believed(replica_id)
        weight = 2.0 ** (one.level / STEPS_PER_OCTAVE) if one else 1.0
        return float(min(max(weight, 1.0 / MAX_WEIGHT), MAX_WEIGHT))
