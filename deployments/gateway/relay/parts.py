"""What a relay works with, one of each a gateway."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.fleet.directory import ReplicaDirectory
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.relay.full_replicas import FullReplicas
from deployments.gateway.relay.quarantine import Quarantine
from deployments.gateway.routing import Router
from deployments.gateway.routing.circuit_breaker import CircuitBreakers
from deployments.observe.metrics import GatewayMetrics
from deployments.settings import GatewaySettings


@dataclass(frozen=True, kw_only=True)
class RelayParts:
    settings: GatewaySettings
    directory: ReplicaDirectory
    router: Router
    metrics: GatewayMetrics
    connections: ReplicaConnections
    breakers: CircuitBreakers = field(default_factory=CircuitBreakers)
    full: FullReplicas = field(default_factory=FullReplicas)
    quarantine: Quarantine = field(default_factory=Quarantine)
