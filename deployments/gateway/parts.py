"""What the gateway's routes work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from deployments.fleet.directory import ReplicaDirectory
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import Keys
from deployments.gateway.access.rate_limits import RateLimiter
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.relay.full_replicas import FullReplicas
from deployments.gateway.relay.quarantine import Quarantine
from deployments.gateway.routing import Router
from deployments.gateway.routing.circuit_breaker import CircuitBreakers
from deployments.observe.metrics import GatewayMetrics
from deployments.observe.tracing import NoOpTracer, Tracer
from deployments.settings import GatewaySettings


@dataclass(frozen=True)
class GatewayParts:
    settings: GatewaySettings
    keys: Keys
    directory: ReplicaDirectory
    router: Router
    metrics: GatewayMetrics
    connections: ReplicaConnections
    gateways: Callable[[], Awaitable[Sequence[GatewayAddress]]]
    """Every gateway of the application."""
    breakers: CircuitBreakers = field(default_factory=CircuitBreakers)
    full: FullReplicas = field(default_factory=FullReplicas)
    quarantine: Quarantine = field(default_factory=Quarantine)
    limiter: RateLimiter = field(default_factory=RateLimiter)
    session_header: str | None = None
    """Requests that have the same value in it belong on one replica."""
    tracer: Tracer = field(default_factory=NoOpTracer)
