"""The table of replicas: one record for each that is listed, or that still has requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.replicas.feed import Feed
from deployments.gateway.replicas.load import Load
from deployments.gateway.replicas.quarantine import Quarantine
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.work import Work


class ReplicaTable:
    """Belongs to one event loop; ``now`` is in seconds."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        *,
        load_half_life_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._load_half_life_s = load_half_life_s
        self._now = now
        self._turns = count(1)
        self._listed: tuple[Replica, ...] = ()
        self._states: dict[str, ReplicaState] = {}
        self.quarantine = Quarantine(now)
        self.feed = Feed()

    def serving(self, model: str) -> list[ReplicaState]:
        """Those that are listed."""
        self._follow_directory()
        return [self._states[one.replica_id] for one in self._listed if one.model == model]

    @contextmanager
    def attempt(self, work: Work, suspect: Suspect, state: ReplicaState) -> Iterator[None]:
        """The replica has the request for as long as the block runs. It is the probe of a
        half-open breaker; if nothing is learned, as when its client leaves, another one is."""
        breaker = state.breaker
        if probes := not breaker.is_closed:
            breaker.is_probing = True
        state.last_turn = next(self._turns)
        state.load.started(work.tokens, work.num_sequences, cached_tokens=work.cached_tokens)
        self.quarantine.enter(suspect, state)
        try:
            yield
        finally:
            if probes:
                breaker.is_probing = False
            state.full_until = 0.0
            state.load.finished(work.tokens, work.num_sequences, cached_tokens=work.cached_tokens)
            self.quarantine.leave(suspect, state)

    def _follow_directory(self) -> None:
        listed = self.directory.replicas
        if listed is self._listed:
            return
        self._listed = listed
        # The only place where a replica is forgotten.
        known = {name: one for name, one in self._states.items() if one.present}
        for replica in listed:
            state = self._states.get(replica.replica_id)
            if state is None:
                state = ReplicaState(replica, self._now, Load(self._now, self._load_half_life_s))
            state.replica = replica
            known[replica.replica_id] = state
        self._states = known

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        self._follow_directory()
        for state in self._states.values():
            state.check_integrity()
        self.quarantine.check_integrity(self._states.values())


def full_retry_after_s(states: Iterable[ReplicaState]) -> int | None:
    """The shortest wait that one of those that are full has named; None: all have room."""
    return min((one.retry_after_s for one in states if not one.has_room), default=None)


def open_retry_after_s(states: Iterable[ReplicaState]) -> int:
    """Whole seconds, at least 1, until one whose breaker is open may be asked."""
    rests = (one.breaker.rest_left_s for one in states if not one.breaker.admits)
    return max(1, math.ceil(min(rests, default=0.0)))
