"""Routers that know nothing of prompts, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.work import Placed, Work


class RoundRobin:
    def __init__(self) -> None:
        self._turns = count()

    def choose(self, work: Work, candidates: Sequence[ReplicaState]) -> ReplicaState:
        return candidates[next(self._turns) % len(candidates)]

    def placed(self, work: Work, state: ReplicaState) -> Placed:
        return Placed("unknown")


class ByLot:
    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, work: Work, candidates: Sequence[ReplicaState]) -> ReplicaState:
        return self._random.choice(candidates)

    def placed(self, work: Work, state: ReplicaState) -> Placed:
        return Placed("unknown")
