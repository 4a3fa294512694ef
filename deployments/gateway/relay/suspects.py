"""Which request took a replica down, as far as one gateway can tell, and what follows.

A replica that falls takes all of its requests with it, and any of them may be why. They are
resumed at once; when the next replica falls as well, whoever was at both falls, without having got
past the token of the first, is to blame and is not tried again. That is fair as long as few were:
where more than ``TOGETHER`` were, nobody can tell. So streams that may do it again enter a replica
``TOGETHER`` at a time, each until it has got past its token. After a first fall these are the few
that had just begun there, so that hardly anybody waits; after a second one, all that were at both.

Requests without a token, streams that had just begun and settled ones are told apart, and judged by
the same rule. Thus one that kills replicas is stopped after its second, with at most
``TOGETHER - 1`` innocent ones of each kind; after its third, if it does so in the middle of a
stream, among many others. Whoever has no token may stand in a replica's queue for long and waits
for nobody: if more than ``TOGETHER`` such share two falls, ``max_attempts`` is their limit. An
answer that isn't streamed counts as one of them, since it begins anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from deployments.fleet.directory import Replica

TOGETHER = 4
"""More would be resumed sooner and blamed together."""
PAST_AFTER = 4
"""Tokens of each sequence. The one that kills may be a few after the last that was sent."""
SETTLED_AFTER = 32
"""Tokens of each sequence after which a stream is no longer new to a replica, and a loss before
says nothing about the next one."""
MAX_IN_LINE = 16
"""Streams that wait for each other after a first fall: of more, the last would pause for long."""
MAX_LOST = 4
"""Replicas that one request may lose, whoever is to blame."""


@dataclass(frozen=True)
class _Verdict:
    company: frozenset[Suspect]
    is_to_blame: bool
    with_few: bool
    """Whether it enters the next replica with few others."""


class _Stage(Enum):
    """How far a request has come at the replica where it is."""

    WAITS = "waits"
    BEGINS = "begins"
    SETTLED = "settled"


class Suspect:
    """One request. ``num_sequences``: how many tokens it gets in a step."""

    def __init__(self, num_sequences: int = 1) -> None:
        self.is_blamed = False
        self.progress = 0
        """Tokens so far, about."""
        self._num_sequences = num_sequences
        self._num_lost = 0
        self._fell_at = 0
        """Progress at the last loss."""
        self._company: frozenset[Suspect] | None = None
        """Those of whom one must have caused its last loss; None if that is settled."""
        self._with_few = False
        self._verdict: _Verdict | None = None
        """On the fall of the replica where it is, once one of those there has noticed."""

    @property
    def on_trial(self) -> bool:
        """Whether it may be about to do again what it may have done."""
        return self._company is not None and not self._went_on_for(PAST_AFTER)

    @property
    def needs_a_place(self) -> bool:
        return self._with_few and self.on_trial

    @property
    def is_judged(self) -> bool:
        return self._verdict is not None

    @property
    def _stage(self) -> _Stage:
        if not self.progress:
            return _Stage.WAITS
        return _Stage.SETTLED if self._went_on_for(SETTLED_AFTER) else _Stage.BEGINS

    def went_on(self, progress: int) -> None:
        if progress == self.progress:
            return
        self.progress = progress
        self._verdict = None
        if self._company is not None and self._stage is _Stage.SETTLED:
            self._company = None

    def judge(self, present: frozenset[Suspect]) -> None:
        """Of ``present``, which includes this one, somebody has taken the replica down."""
        again = present & self._company if self._company is not None else frozenset()
        suspects = frozenset(one for one in again if one._company is not None)
        culprits = frozenset(one for one in suspects if one.on_trial) or suspects
        if self in culprits:
            is_to_blame = len(culprits) <= TOGETHER
            self._verdict = _Verdict(culprits, is_to_blame, self.progress > 0)
            return
        peers = frozenset(one for one in present if one._stage is self._stage)
        with_few = self._stage is _Stage.BEGINS and len(peers) <= MAX_IN_LINE
        self._verdict = _Verdict(peers, False, with_few)

    def lost(self) -> None:
        """After ``judge``: it is indeed among those that were lost."""
        assert self._verdict is not None
        self._num_lost += 1
        self.is_blamed = self._verdict.is_to_blame or self._num_lost >= MAX_LOST
        self._company = self._verdict.company
        self._with_few = self._verdict.with_few
        self._fell_at = self.progress
        self._verdict = None

    def _went_on_for(self, num_tokens: int) -> bool:
        return self.progress - self._fell_at >= num_tokens * self._num_sequences


class Suspects:
    """Who is where, of all requests of one gateway."""

    def __init__(self) -> None:
        self._present: defaultdict[str, set[Suspect]] = defaultdict(set)
        """By replica id."""
        self._places: dict[Suspect, str] = {}
        """Of those that hold one, the id of the replica."""
        self._num_taken: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def has_place(self, suspect: Suspect, replica: Replica) -> bool:
        return not suspect.needs_a_place or self._num_taken[replica.replica_id] < TOGETHER

    async def wait_for_place(self, timeout_s: float) -> None:
        """Returns when there may be one, first come, first served."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await waiter

    @contextmanager
    def request(self, suspect: Suspect, replica: Replica) -> Iterator[None]:
        """``replica`` has the request for as long as the block runs."""
        name = replica.replica_id
        self._present[name].add(suspect)
        if suspect.needs_a_place:
            self._places[suspect] = name
            self._num_taken[name] += 1
        try:
            yield
        finally:
            self._leave_place(suspect)
            self._present[name].discard(suspect)
            if not self._present[name]:
                del self._present[name]

    def went_on(self, suspect: Suspect, progress: int) -> None:
        """``progress``: tokens so far, about."""
        suspect.went_on(progress)
        if suspect in self._places and not suspect.on_trial:
            self._leave_place(suspect)

    def lost(self, suspect: Suspect, replica: Replica) -> None:
        """``replica`` fell while it had the request."""
        if not suspect.is_judged:
            present = frozenset(self._present[replica.replica_id])
            for one in present:
                one.judge(present)
        suspect.lost()

    def _leave_place(self, suspect: Suspect) -> None:
        name = self._places.pop(suspect, None)
        if name is None:
            return
        self._num_taken[name] -= 1
        if not self._num_taken[name]:
            del self._num_taken[name]
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
