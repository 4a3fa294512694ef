"""The ``Router`` protocol: what a router is asked and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.work import Placed, Work


class Router(Protocol):
    def choose(self, work: Work, candidates: Sequence[ReplicaState]) -> ReplicaState:
        """One of ``candidates``, which is never empty."""
        ...

    def placed(self, work: Work, state: ReplicaState) -> Placed:
        """It is sent there; what was known of its prompt before."""
        ...
