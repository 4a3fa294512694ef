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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import Fall, Suspect

WINDOW_S = 10.0
MOST_TURNS = 16
"""If more are on trial, they are tried in groups, for the last one not to wait too long."""


class Quarantine:
    """What goes beyond one replica: who is on trial, and which falls count as one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._on_trial: set[Suspect] = set()
        self._reserved: tuple[Suspect, ReplicaState] | None = None
        """For one that must be alone, the replica that gets no other request."""
        self._outage = 0
        self._outage_began = -WINDOW_S
        self._fallen: set[str] = set()
        """Ids of the outage's replicas."""
        self._waiting: list[asyncio.Future[None]] = []

    def able(self, suspect: Suspect, states: Sequence[ReplicaState]) -> list[ReplicaState]:
        """Those that it may be sent to now. If there is none for one that must be alone, the one
        with the fewest requests is reserved."""
        able = [one for one in states if self._admits(suspect, one)]
        if states and not able and suspect.must_be_alone:
            self._reserve(suspect, states)
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

    def enter(self, suspect: Suspect, state: ReplicaState) -> None:
        state.present.add(suspect)
        if suspect.on_trial:
            state.on_trial.add(suspect)
        self._release(suspect)

    def leave(self, suspect: Suspect, state: ReplicaState) -> None:
        suspect.fall = None
        state.on_trial.discard(suspect)
        state.present.discard(suspect)
        self._changed()

    def went_on(self, suspect: Suspect, state: ReplicaState, progress: int) -> None:
        """``progress``: tokens so far, about."""
        if suspect.went_on(progress) and suspect in self._on_trial:
            self._on_trial.discard(suspect)
            state.on_trial.discard(suspect)
            self._changed()

    def lost(self, suspect: Suspect, state: ReplicaState) -> None:
        """The replica fell, or its step failed, while it had the request."""
        if suspect.fall is None:
            outage = self._outage_of(state.replica_id)
            fall = Fall(outage, len(state.present), frozenset(state.on_trial))
            for one in state.present:
                one.fall = fall
        assert suspect.fall is not None
        suspect.lost(suspect.fall)
        if suspect.on_trial:
            self._on_trial.add(suspect)

    def check_integrity(self, states: Iterable[ReplicaState]) -> None:
        """Raises ``AssertionError``."""
        on_trial = [one for state in states for one in state.on_trial]
        assert len(set(on_trial)) == len(on_trial), "on trial in two places"
        assert self._on_trial.issuperset(on_trial), "on trial without a loss"
        assert all(one.on_trial for one in self._on_trial), "on trial for nothing"
        assert not self._reserved or self._reserved[0] in self._on_trial, "reserved for nobody"

    def _admits(self, suspect: Suspect, state: ReplicaState) -> bool:
        if self._reserved and self._reserved[1] is state and self._reserved[0] is not suspect:
            return False
        if not state.present:
            return True
        if suspect.must_be_alone:
            return False
        if not suspect.on_trial:
            return not state.on_trial
        most = min(one.most_together for one in (suspect, *state.on_trial))
        group = -(-len(self._on_trial) // MOST_TURNS)
        is_closed = any(one.must_be_alone for one in state.on_trial)
        return not is_closed and len(state.on_trial) < min(most, group)

    def _reserve(self, suspect: Suspect, states: Sequence[ReplicaState]) -> None:
        if self._reserved:
            holder, reserved = self._reserved
            if holder is not suspect or reserved in states:
                return
        self._reserved = suspect, min(states, key=lambda one: len(one.present))

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
