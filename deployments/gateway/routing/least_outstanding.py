"""Least-outstanding-tokens routing: the least loaded replica, whatever it has cached."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.work import Placed, Work


class LeastOutstandingTokens:
    """The replica with the fewest tokens that this gateway has sent it and not seen finished.

    Equal replicas take turns: the one that was chosen longest ago comes first. One that has just
    failed comes last: it has few tokens outstanding because it refuses, not because it is fast.
    """

    def choose(self, work: Work, candidates: Sequence[ReplicaState]) -> ReplicaState:
        return min(
            candidates, key=lambda one: (one.breaker.is_resting, one.load.tokens, one.last_turn)
        )

    def placed(self, work: Work, state: ReplicaState) -> Placed:
        """The record knows it, and nothing of prompts."""
        return Placed("unknown")
