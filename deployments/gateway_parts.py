"""What the gateway's routes work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from deployments.api_keys import Keys
from deployments.circuit_breaker import CircuitBreakers
from deployments.directory import ReplicaDirectory
from deployments.full_replicas import FullReplicas
from deployments.metrics import GatewayMetrics
from deployments.rate_limits import RateLimiter
from deployments.replica_connections import ReplicaConnections
from deployments.routing import Router
from deployments.settings import GatewaySettings
from deployments.suspects import Suspects
from deployments.targets import GatewayAddress
from deployments.tracing import NoOpTracer, Tracer


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
    suspects: Suspects = field(default_factory=Suspects)
    limiter: RateLimiter = field(default_factory=RateLimiter)
    session_header: str | None = None
    """Requests that have the same value in it belong on one replica."""
    tracer: Tracer = field(default_factory=NoOpTracer)
