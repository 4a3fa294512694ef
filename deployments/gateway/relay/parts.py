"""What a relay works with, one of each a gateway."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.fleet.directory import ReplicaDirectory
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.routing import Router
from deployments.observe.metrics import GatewayMetrics
from deployments.settings import GatewaySettings


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
