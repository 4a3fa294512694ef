"""Prefix-affinity routing: the replica that has a prefix cached, within a bound on its load.

The bound is that of Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads"
(2018): no replica is chosen that already has more than ``load_bound`` times its fair share of
everything there is, so a hot prefix spreads, and each replica it spreads to has it from then on.
But nobody is sent away from a replica where less is to be done first than another one would have to
compute again: a share says little where few are at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deployments.gateway.replicas.capacity import weights
from deployments.gateway.replicas.pace import slowdowns
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.work import Affinity, Placed, Work
from deployments.gateway.routing.prefix_index import PrefixIndex
from deployments.gateway.routing.rendezvous import rendezvous
from deployments.settings import RoutingSettings


@dataclass(frozen=True)
class _Candidate:
    state: ReplicaState
    weight: float
    load: float
    """In tokens, over the weight."""
    is_slow: bool
    """Whether a token takes far longer there now than its weight would have it."""


class PrefixAffinity:
    """One gateway's router; its methods take microseconds and run on the event loop alone."""

    def __init__(self, settings: RoutingSettings) -> None:
        self._settings = settings
        self._index = PrefixIndex(settings.max_prefixes)

    def choose(self, work: Work, candidates: Sequence[ReplicaState]) -> ReplicaState:
        rested = [one for one in candidates if not one.breaker.is_resting]
        able = self._weighed(rested or candidates)
        roomy = self._with_room(able, work)
        affinity = work.affinity
        known = self._num_known(affinity, able)
        if known and affinity.shares[known - 1] >= self._settings.min_match:
            return self._among_holders(affinity, known, roomy)
        # What is told of a session says nothing of what is cached: its title, say.
        if home := self._latest(affinity.session, roomy):
            return home.state
        # Gateways agree on what is new where they have seen the same prefixes.
        new = affinity.new(known)
        return _least_loaded(roomy) if new is None else _agreed(new, roomy)

    def placed(self, work: Work, state: ReplicaState) -> Placed:
        affinity = work.affinity
        holders = next(filter(None, map(self._index.holders, reversed(affinity.keys))), ())
        cached_tokens = int(self._share_cached(affinity, state) * work.prompt_tokens)
        marks = () if affinity.session is None else (affinity.session,)
        self._index.add((*affinity.keys, *marks), state.replica_id)
        if not holders:
            return Placed("unknown")
        return Placed("here" if state.replica_id in holders else "elsewhere", cached_tokens)

    def _weighed(self, states: Sequence[ReplicaState]) -> list[_Candidate]:
        if not self._settings.weigh_capacity:
            return [_Candidate(one, 1.0, one.load.recent_tokens, False) for one in states]
        shares = weights([one.capacity for one in states])
        slow = slowdowns([one.token_s for one in states], shares)
        return [
            _Candidate(one, share / times, one.load.recent_tokens * times / share, times > 1.0)
            for one, share, times in zip(states, shares, slow, strict=True)
        ]

    def _share_cached(self, affinity: Affinity, state: ReplicaState) -> float:
        """The part of the prompt that the replica has, as far as is known."""
        for key, share in zip(affinity.keys[::-1], affinity.shares[::-1], strict=True):
            if state.replica_id in self._index.holders(key):
                return share
        return 0.0

    def _with_room(self, able: Sequence[_Candidate], work: Work) -> list[_Candidate]:
        """Those within the bound: at least the least loaded, since not all can exceed a mean. A
        slow one has room only for what it would end about as soon as others."""
        total = work.tokens + sum(one.load * one.weight for one in able)
        fair = total / sum(one.weight for one in able)
        bound = self._settings.load_bound * fair
        free = self._settings.free_tokens
        roomy = [
            one
            for one in able
            if (
                one.load + work.tokens / one.weight < bound
                if one.is_slow
                else one.load < bound
                or one.load * one.weight < free
                or self._is_worth_waiting(work, one.state)
            )
        ]
        return roomy or list(able)

    def _is_worth_waiting(self, work: Work, state: ReplicaState) -> bool:
        """Whether less is to be done there first than would have to be computed elsewhere."""
        share = self._share_cached(work.affinity, state)
        saved = share * work.prompt_tokens
        return share >= self._settings.min_match and state.load.uncached_tokens < saved

    def _num_known(self, affinity: Affinity, able: Sequence[_Candidate]) -> int:
        """How many of the keys, from the first on, one of ``able`` has."""
        names = {one.state.replica_id for one in able}
        for known in range(len(affinity.keys), 0, -1):
            if not names.isdisjoint(self._index.holders(affinity.keys[known - 1])):
                return known
        return 0

    def _among_holders(
        self, affinity: Affinity, known: int, roomy: Sequence[_Candidate]
    ) -> ReplicaState:
        """For a request whose first ``known`` keys are worth meeting again."""
        if holders := self._holders(affinity.keys[known - 1], roomy):
            if home := self._latest(affinity.session, holders):
                return home.state
            new = affinity.new(known)
            return _least_loaded(holders) if new is None else _agreed(new, holders)
        # All who have it are at the bound. What is shared decides where to, not what is new, so
        # that it spreads to one more replica and not to all; best to one that has most of it.
        shared = affinity.keys[known - 1]
        for key, share in zip(
            affinity.keys[:known][::-1], affinity.shares[:known][::-1], strict=True
        ):
            if share >= self._settings.min_match and (holders := self._holders(key, roomy)):
                return _agreed(shared, holders)
        return _agreed(shared, roomy)

    def _latest(self, session: int | None, among: Sequence[_Candidate]) -> _Candidate | None:
        """The one of ``among`` that was latest sent something of ``session``."""
        names = () if session is None else self._index.holders(session)
        able = {one.state.replica_id: one for one in among}
        return next((able[name] for name in names if name in able), None)

    def _holders(self, key: int, among: Sequence[_Candidate]) -> list[_Candidate]:
        names = self._index.holders(key)
        return [one for one in among if one.state.replica_id in names]


def _agreed(key: int, among: Sequence[_Candidate]) -> ReplicaState:
    names = [one.state.replica_id for one in among]
    return among[rendezvous(key, names, [one.weight for one in among])].state


def _least_loaded(among: Sequence[_Candidate]) -> ReplicaState:
    return min(among, key=lambda one: one.load).state
