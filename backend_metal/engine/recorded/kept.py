"""The recordings that are kept, and which of them give way to new ones."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from backend_metal.devices.recording import Recording
from backend_metal.engine.recorded.shape import StepShape

MOST_DECODES = 24
MOST_CHUNKS = 6
"""Recordings where each sequence has one token, and others. Each keeps the memory that its step
works in: tens of MB for a small model, a few hundred for a large one."""
IDLE_STEPS = 1000
"""Recorded steps after which a recording that none of them was gives way. To make one takes as long
as many replays: where more are wanted than there is room for, the rest runs as it is."""


@dataclass
class _Kept:
    recording: Recording
    used_at: int
    """How many steps were recorded ones by then."""


class KeptRecordings:
    def __init__(self) -> None:
        self._decodes: OrderedDict[StepShape, _Kept] = OrderedDict()
        self._chunks: OrderedDict[StepShape, _Kept] = OrderedDict()
        """What was not used for longest comes first."""
        self._num_steps = 0
        self.num_made = 0

    @property
    def shapes(self) -> list[StepShape]:
        return [*self._decodes, *self._chunks]

    def __contains__(self, shape: StepShape) -> bool:
        recordings, _ = self._of_its_kind(shape)
        return shape in recordings

    def get(self, shape: StepShape) -> Recording | None:
        """To be replayed."""
        recordings, _ = self._of_its_kind(shape)
        found = recordings.get(shape)
        if found is None:
            return None
        self._num_steps += 1
        found.used_at = self._num_steps
        recordings.move_to_end(shape)
        return found.recording

    def has_room(self, shape: StepShape) -> bool:
        """Whether another of its kind may be added."""
        recordings, most = self._of_its_kind(shape)
        if len(recordings) < most:
            return True
        oldest = next(iter(recordings.values()))
        return self._num_steps - oldest.used_at > IDLE_STEPS

    def add(self, shape: StepShape, recording: Recording) -> None:
        """Where there is room."""
        recordings, most = self._of_its_kind(shape)
        while len(recordings) >= most:
            recordings.popitem(last=False)
        self.num_made += 1
        self._num_steps += 1
        recordings[shape] = _Kept(recording, self._num_steps)

    def clear(self) -> None:
        self._decodes.clear()
        self._chunks.clear()

    def _of_its_kind(self, shape: StepShape) -> tuple[OrderedDict[StepShape, _Kept], int]:
        """And how many of them there may be."""
        if shape.decodes:
            return self._decodes, MOST_DECODES
        return self._chunks, MOST_CHUNKS
