"""What a relay works with, one of each a gateway."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.fleet.directory import ReplicaDirectory
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.routing import Router
from deployments.observe.metrics import GatewayMetrics
from deployments.settings import LONGEST_PATIENCE_S, GatewaySettings

LEAST_PATIENCE_S = 30.0
STARTS = 2.0
"""Patience relative to the slowest start of an engine: engines that restart together share disks
and cores, and Serve must notice the loss first."""


@dataclass(frozen=True, kw_only=True)
class RelayParts:
    settings: GatewaySettings
    replicas: ReplicaTable
    router: Router
    metrics: GatewayMetrics
    connections: ReplicaConnections

    @property
    def directory(self) -> ReplicaDirectory:
        return self.replicas.directory

    def patience_s(self, model: str) -> float:
        """How long a request for ``model`` waits for a replica."""
        starts = (one.start_s for one in self.directory.lately_serving(model))
        at_least_s = max(LEAST_PATIENCE_S, STARTS * max(starts, default=0.0))
        timeout_s = self.settings.resume_timeout_s
        return min(at_least_s, LONGEST_PATIENCE_S) if timeout_s is None else timeout_s
