"""How long steps take by how many sequences decode in them, as measured while serving.

No formula: kernels have tiles, contexts grow, and what streams cost the rest of the process is in a
step's time too, so that a step of 20 may take twice what a fit through steps of 8 says.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

MOST_COUNTED = 16
"""Of the steps of one size, about so many, the latest, count."""
ENOUGH = 8
"""So many tell what a size takes."""
RECENT = 64
"""Steps for which what lies between counts: answers grow meanwhile, and steps with them."""
FORGOTTEN_AFTER = 2000
"""Steps after which it is worth another try whether larger ones still take what they took."""


@dataclass
class Mean:
    """Harmonic, of the latest steps of one kind, so that one stall counts little."""

    rate: float = 0.0
    count: int = 0
    latest: int = 0

    @property
    def seconds(self) -> float | None:
        """None until enough were seen."""
        return 1 / self.rate if self.count >= ENOUGH else None

    def add(self, seconds: float, now: int) -> None:
        """``now``: steps so far."""
        self.count = min(self.count + 1, MOST_COUNTED)
        self.rate += (1 / seconds - self.rate) / self.count
        self.latest = now


class DecodeTimes:
    """Seconds of steps that decode and do nothing else, of each size that was seen often enough.

    What is between two sizes lies on the line between them, and what is below all on that to zero.
    """

    def __init__(self) -> None:
        self._means: dict[int, Mean] = {}
        self._num_steps = 0
        self._latest = 0
        """Decodes of the latest step."""
        self._most: dict[tuple[float, int], float] = {}
        """What was asked since the latest step: a schedule asks more than once."""

    def observe(self, num_decodes: int, seconds: float) -> None:
        """Both are more than 0."""
        self._most.clear()
        self._num_steps += 1
        self._latest = num_decodes
        self._means.setdefault(num_decodes, Mean()).add(seconds, self._num_steps)
        for size, mean in list(self._means.items()):
            if size > num_decodes and self._num_steps - mean.latest > FORGOTTEN_AFTER:
                del self._means[size]

    def seconds_of(self, num_decodes: int) -> float | None:
        """As last seen; None where this very size was not, or too seldom."""
        mean = self._means.get(num_decodes)
        return None if mean is None else mean.seconds

    def most_within(self, factor: float, num_decodes: int) -> float:
        """The largest size that takes at most ``factor`` times as long as ``num_decodes``; of those
        larger than any that is known the next one alone, which is worth a try. Infinite while none
        is known."""
        asked = factor, num_decodes
        if asked not in self._most:
            self._most[asked] = self._most_within(factor, num_decodes)
        return self._most[asked]

    def _most_within(self, factor: float, num_decodes: int) -> float:
        sizes = sorted(
            size
            for size, mean in self._means.items()
            if mean.count >= ENOUGH
            and (not num_decodes < size < self._latest or self._num_steps - mean.latest <= RECENT)
        )
        if not sizes:
            return inf
        known = [1 / self._means[size].rate for size in sizes]
        every = np.arange(max(num_decodes, sizes[-1] + 1) + 1)
        seconds: NDArray[np.float64] = np.interp(every, [0, *sizes], [0.0, *known])
        # No step is faster for a sequence more: what says so is noise, which makes steps longer.
        larger = seconds[num_decodes:]
        larger[0] = larger.min()
        most = factor * larger[0]
        return num_decodes + int(np.searchsorted(np.maximum.accumulate(larger), most, "right")) - 1
