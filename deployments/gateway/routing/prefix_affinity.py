"""Prefix-affinity routing: the replica that has a prefix cached, within a bound on its load.

The bound is that of Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads"
(2018): no replica is chosen that already has more than ``load_bound`` times its fair share of
everything there is, so a hot prefix spreads, and each replica it spreads to has it from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployments.fleet.directory import Replica
from deployments.gateway.routing.affinity import Affinity
from deployments.gateway.routing.capacity import Capacity
from deployments.gateway.routing.circuit_breaker import CircuitBreakers
from deployments.gateway.routing.load import LoadLedger
from deployments.gateway.routing.prefix_index import PrefixIndex
from deployments.gateway.routing.rendezvous import rendezvous
from deployments.gateway.routing.router import Work
from deployments.settings import RoutingSettings


@dataclass(frozen=True)
class _Candidate:
    replica: Replica
    weight: float
    load: float
    """In tokens, over the weight."""


class PrefixAffinity:
    """One gateway's router; its methods take microseconds and run on the event loop alone."""

    def __init__(
        self, settings: RoutingSettings, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._breakers = CircuitBreakers(now, failures_to_open=1)
        self._index = PrefixIndex(settings.max_prefixes)
        self._ledger = LoadLedger(half_life_s=settings.load_half_life_s, now=now)
        self._capacity = Capacity()

    def choose(self, work: Work, candidates: Sequence[Replica]) -> Replica:
        admitted = [one for one in candidates if self._breakers.admits(one)]
        able = self._weighed(admitted or candidates)
        roomy = self._with_room(able, work.tokens)
        affinity = work.affinity
        known = self._num_known(affinity, able)
        if known and affinity.shares[known - 1] >= self._settings.min_match:
            return self._among_holders(affinity, known, roomy)
        # Gateways agree on what is new where they have seen the same prefixes.
        new = affinity.keys[known:]
        return _agreed(new[0], roomy) if new else _least_loaded(roomy)

    def load(self, replica: Replica) -> float:
        """Tokens on ``replica`` now, with what is left of those it had a moment ago."""
        return self._ledger.load(replica.replica_id)

    def started(self, work: Work, replica: Replica) -> None:
        self._ledger.started(replica.replica_id, work.tokens, work.num_sequences)
        self._index.add(work.affinity.keys, replica.replica_id)

    def finished(self, work: Work, replica: Replica) -> None:
        self._ledger.finished(replica.replica_id, work.tokens, work.num_sequences)

    def failed(self, replica: Replica) -> None:
        self._breakers.failed(replica)

    def answered(self, replica: Replica) -> None:
        self._breakers.succeeded(replica)

    def streamed(self, work: Work, replica_id: str, num_tokens: int, seconds: float) -> None:
        if self._settings.weigh_capacity:
            self._capacity.streamed(
                replica_id,
                num_tokens=num_tokens // work.num_sequences,
                seconds=seconds,
                num_sequences=self._ledger.num_sequences(replica_id) + work.num_sequences,
            )

    def _weighed(self, replicas: Sequence[Replica]) -> list[_Candidate]:
        names = [replica.replica_id for replica in replicas]
        weights = self._capacity.weights(names)
        return [
            _Candidate(replica, weight, self._ledger.load(name) / weight)
            for replica, name, weight in zip(replicas, names, weights, strict=True)
        ]

    def _with_room(self, able: Sequence[_Candidate], tokens: int) -> list[_Candidate]:
        """Those within the bound: at least the least loaded, since not all can exceed a mean."""
        total = tokens + sum(one.load * one.weight for one in able)
        fair = total / sum(one.weight for one in able)
        bound = self._settings.load_bound * fair
        free = self._settings.free_tokens
        return [one for one in able if one.load < bound or one.load * one.weight < free]

    def _num_known(self, affinity: Affinity, able: Sequence[_Candidate]) -> int:
        """How many of the keys, from the first on, one of ``able`` has."""
        names = {one.replica.replica_id for one in able}
        for known in range(len(affinity.keys), 0, -1):
            if not names.isdisjoint(self._index.holders(affinity.keys[known - 1])):
                return known
        return 0

    def _among_holders(
        self, affinity: Affinity, known: int, roomy: Sequence[_Candidate]
    ) -> Replica:
        """For a request whose first ``known`` keys are worth meeting again."""
        if holders := self._holders(affinity.keys[known - 1], roomy):
            new = affinity.keys[known:]
            return _agreed(new[0], holders) if new else _least_loaded(holders)
        # All who have it are at the bound. What is shared decides where to, not what is new, so
        # that it spreads to one more replica and not to all; best to one that has most of it.
        shared = affinity.keys[known - 1]
        for key, share in zip(
            affinity.keys[:known][::-1], affinity.shares[:known][::-1], strict=True
        ):
            if share >= self._settings.min_match and (holders := self._holders(key, roomy)):
                return _agreed(shared, holders)
        return _agreed(shared, roomy)

    def _holders(self, key: int, among: Sequence[_Candidate]) -> list[_Candidate]:
        names = self._index.holders(key)
        return [one for one in among if one.replica.replica_id in names]


def _agreed(key: int, among: Sequence[_Candidate]) -> Replica:
    return rendezvous(key, [one.replica for one in among], [one.weight for one in among])


def _least_loaded(among: Sequence[_Candidate]) -> Replica:
    return min(among, key=lambda one: one.load).replica
