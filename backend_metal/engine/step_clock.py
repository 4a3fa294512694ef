"""What the host does in a step, and how long that takes."""

from __future__ import annotations

from time import perf_counter
from typing import Literal, get_args

Part = Literal["schedule", "build", "submit", "mask", "wait", "complete"]
"""``schedule``: which tokens run. ``build``: arrays, and MLX's graph. ``submit``: MLX hands the
graph to the device, and waits for it when too much is under way. ``mask``: which tokens grammars
and lists leave. ``wait``: for the device. ``complete``: tokens become text and deltas, and
sequences end."""
PARTS: tuple[Part, ...] = get_args(Part)


class StepClock:
    """A stopwatch that is read between two parts."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._read_at = perf_counter()

    def start(self) -> None:
        """What was before is no part of a step."""
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._read_at = perf_counter()

    def lap(self, part: Part) -> None:
        """Since the clock was read last, ``part`` was done."""
        now = perf_counter()
        self._seconds[part] += now - self._read_at
        self._read_at = now

    @property
    def seconds(self) -> dict[Part, float]:
        """Of each part, since the start."""
        return self._seconds
