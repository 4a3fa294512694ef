"""Quarantine: a request that may have taken replicas down is tried apart from others.

A replica that falls takes all of its requests with it, and any of them may be why; far more often
none is. So they are resumed at once, wherever there is room, and nobody is refused for having been
there. A request that falls again before it has got on is *on trial*: it enters a replica one at a
time, and nothing else is sent there until it has got on. If the replica falls even so, the request
is tried *alone*, on a replica where this gateway has no other. Only what falls alone counts against
a request, and the second time it is refused.

Falls of different replicas within ``WINDOW_S`` have a common cause, mostly, and count as one; but
the third loss in a row is a reason for a trial in any case, or one request might empty a fleet
within a window. One that kills late, after it has got on, is on trial for twice as long with each
loss after ``OFTEN``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from deployments.fleet.directory import Replica

WINDOW_S = 10.0
PAST_AFTER = 4
"""Tokens of each sequence by which a request gets on. The one that kills may be a few after the
last that was sent."""
OFTEN = 4
"""Losses after which a request is on trial however far it gets in between."""
LOSSES_IN_A_ROW = 3
MOST_TURNS = 16
"""If more are on trial, they are tried in groups, for the last one not to wait too long."""
MOST_ALONE = 2
"""Falls while alone."""


class Suspect:
    """One request, and the falls that it was part of. ``num_sequences``: how many tokens it gets
    in a step."""

    def __init__(self, num_sequences: int = 1) -> None:
        self.progress = 0
        """Tokens so far, about."""
        self.must_be_alone = False
        self.most_together = math.inf
        """On trial on one replica with this one, which counts."""
        self.fall: _Fall | None = None
        """Of the replica where it is, once one of those there has noticed."""
        self._num_sequences = num_sequences
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

    def went_on(self, progress: int) -> None:
        if progress == self.progress:
            return
        self.progress = progress
        self.fall = None
        past_after = PAST_AFTER * 2 ** max(0, self._num_losses - OFTEN)
        if progress - self._fell_at >= past_after * self._num_sequences:
            self._losses_in_a_row = 0
            self._outages.clear()
            self.must_be_alone = False
            self.most_together = math.inf

    def lost(self, fall: _Fall) -> None:
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
class _Fall:
    outage: int
    """The same for falls that count as one."""
    num_present: int
    on_trial: frozenset[Suspect]


@dataclass
class _Place:
    """A replica, as far as this gateway's requests are there."""

    present: set[Suspect] = field(default_factory=set)
    on_trial: set[Suspect] = field(default_factory=set)


class Quarantine:
    """Who is where, of all requests of one gateway. ``now`` is in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._places: dict[str, _Place] = {}
        """By replica id; only those that have requests."""
        self._on_trial: set[Suspect] = set()
        self._reserved: tuple[Suspect, str] | None = None
        """For one that must be alone, the id of the replica that gets no other request."""
        self._outage = 0
        self._outage_began = -WINDOW_S
        self._fallen: set[str] = set()
        """Ids of the outage's replicas."""
        self._waiting: list[asyncio.Future[None]] = []

    def able(self, suspect: Suspect, replicas: Sequence[Replica]) -> list[Replica]:
        """Those that it may be sent to now. If there is none for one that must be alone, the one
        with the fewest requests is reserved."""
        able = [one for one in replicas if self._admits(suspect, one.replica_id)]
        if replicas and not able and suspect.must_be_alone:
            self._reserve(suspect, [one.replica_id for one in replicas])
        return able

    async def wait_for_change(self, timeout_s: float) -> None:
        """Returns when there may be a place, first come, first served."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await waiter

    @contextmanager
    def request(self, suspect: Suspect) -> Iterator[None]:
        """The whole life of a request, on whichever replicas."""
        try:
            yield
        finally:
            self._on_trial.discard(suspect)
            self._release(suspect)

    @contextmanager
    def attempt(self, suspect: Suspect, replica: Replica) -> Iterator[None]:
        """``replica`` has the request for as long as the block runs."""
        place = self._places.setdefault(replica.replica_id, _Place())
        place.present.add(suspect)
        if suspect.on_trial:
            place.on_trial.add(suspect)
        self._release(suspect)
        try:
            yield
        finally:
            suspect.fall = None
            place.on_trial.discard(suspect)
            place.present.discard(suspect)
            if not place.present:
                del self._places[replica.replica_id]
            self._changed()

    def went_on(self, suspect: Suspect, replica: Replica, progress: int) -> None:
        """``progress``: tokens so far, about."""
        suspect.went_on(progress)
        if suspect in self._on_trial and not suspect.on_trial:
            self._on_trial.discard(suspect)
            self._places[replica.replica_id].on_trial.discard(suspect)
            self._changed()

    def lost(self, suspect: Suspect, replica: Replica) -> None:
        """``replica`` fell, or its step failed, while it had the request."""
        if suspect.fall is None:
            place = self._places[replica.replica_id]
            fall = _Fall(
                self._outage_of(replica.replica_id),
                len(place.present),
                frozenset(place.on_trial),
            )
            for one in place.present:
                one.fall = fall
        assert suspect.fall is not None
        suspect.lost(suspect.fall)
        if suspect.on_trial:
            self._on_trial.add(suspect)

    def _admits(self, suspect: Suspect, replica_id: str) -> bool:
        if self._reserved and self._reserved[1] == replica_id and self._reserved[0] is not suspect:
            return False
        place = self._places.get(replica_id)
        if place is None:
            return True
        if suspect.must_be_alone:
            return False
        if not suspect.on_trial:
            return not place.on_trial
        most = min(one.most_together for one in (suspect, *place.on_trial))
        group = -(-len(self._on_trial) // MOST_TURNS)
        is_closed = any(one.must_be_alone for one in place.on_trial)
        return not is_closed and len(place.on_trial) < min(most, group)

    def _reserve(self, suspect: Suspect, replica_ids: Sequence[str]) -> None:
        if self._reserved:
            holder, reserved = self._reserved
            if holder is not suspect or reserved in replica_ids:
                return
        num_present = {one: len(self._places[one].present) for one in replica_ids}
        self._reserved = suspect, min(replica_ids, key=num_present.__getitem__)

    def _release(self, suspect: Suspect) -> None:
        if self._reserved and self._reserved[0] is suspect:
            self._reserved = None
            self._changed()

    def _outage_of(self, replica_id: str) -> int:
        now = self._now()
        if now - self._outage_began >= WINDOW_S or replica_id in self._fallen:
            self._outage += 1
            self._outage_began = now
            self._fallen = set()
        self._fallen.add(replica_id)
        return self._outage

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
