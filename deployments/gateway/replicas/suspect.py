"""Suspects: requests, as far as replicas fell that had them."""

from __future__ import annotations

import math
from dataclasses import dataclass

PAST_AFTER = 4
"""Tokens of each sequence by which a request gets on. The one that kills may be a few after the
last that was sent."""
OFTEN = 4
"""Losses after which a request is on trial however far it gets in between."""
LOSSES_IN_A_ROW = 3
MOST_ALONE = 2
"""Falls while alone."""


class Suspect:
    """One request, and the falls that it was part of. ``num_sequences``: how many tokens it gets
    in a step."""

    def __init__(self, num_sequences: int = 1) -> None:
        self.num_sequences = num_sequences
        self.progress = 0
        """Tokens so far, about."""
        self.must_be_alone = False
        self.most_together = math.inf
        """On trial on one replica with this one, which counts."""
        self.fall: Fall | None = None
        """Of the replica where it is, once one of those there has noticed."""
        self._num_losses = 0
        self._num_alone = 0
        # Since it last got on:
        self._losses_in_a_row = 0
        self._outages: set[int] = set()
        self._fell_at = 0

    @property
    def is_refused(self) -> bool:
        return self._num_alone >= MOST_ALONE

    @property
    def on_trial(self) -> bool:
        return self._losses_in_a_row > 0 and (
            len(self._outages) > 1
            or self._losses_in_a_row >= LOSSES_IN_A_ROW
            or self._num_losses > OFTEN
        )

    def went_on(self, progress: int) -> bool:
        """Whether it has got on since its losses, so that it may be on trial no more."""
        if progress == self.progress:
            return False
        self.progress = progress
        self.fall = None
        if not self._losses_in_a_row:
            return False
        past_after = PAST_AFTER * 2 ** max(0, self._num_losses - OFTEN)
        if progress - self._fell_at < past_after * self.num_sequences:
            return False
        self._losses_in_a_row = 0
        self._outages.clear()
        self.must_be_alone = False
        self.most_together = math.inf
        return True

    def lost(self, fall: Fall) -> None:
        if self in fall.on_trial:
            num_together = len(fall.on_trial)
            self.most_together = max(1, num_together // 2)
            self.must_be_alone = num_together == 1
            self._num_alone += fall.num_present == 1
        self._num_losses += 1
        self._losses_in_a_row += 1
        self._outages.add(fall.outage)
        self._fell_at = max(self._fell_at, self.progress)
        self.fall = None


@dataclass(frozen=True)
class Fall:
    """Of one replica, with the requests that it had."""

    outage: int
    """The same for falls that count as one."""
    num_present: int
    on_trial: frozenset[Suspect]
