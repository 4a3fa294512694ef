"""Settings as each deployment is bound them: no more than it needs, no secret.

What is bound is pickled into the cluster's store, and what differs there is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.backend import EngineConfig
from deployments.settings import (
    AppSettings,
    GatewaySettings,
    ObservabilitySettings,
    ReplicaSettings,
    RoutingSettings,
)


@dataclass(frozen=True)
class EngineReplicaSettings:
    engine: EngineConfig
    replica: ReplicaSettings
    observability: ObservabilitySettings
    max_body_bytes: int
    keep_alive_interval_s: float

    @classmethod
    def of(cls, settings: AppSettings) -> EngineReplicaSettings:
        return cls(
            engine=settings.engine,
            replica=settings.replica,
            observability=settings.observability,
            max_body_bytes=settings.gateway.max_body_bytes,
            keep_alive_interval_s=settings.gateway.keep_alive_interval_s,
        )


@dataclass(frozen=True)
class GatewayReplicaSettings:
    gateway: GatewaySettings
    routing: RoutingSettings
    observability: ObservabilitySettings
    drain_timeout_s: float

    @classmethod
    def of(cls, settings: AppSettings) -> GatewayReplicaSettings:
        """The keys stay behind: their digests are bound on their own."""
        return cls(
            gateway=settings.gateway.model_copy(update={"api_keys": ()}),
            routing=settings.routing,
            observability=settings.observability,
            drain_timeout_s=settings.replica.drain_timeout_s,
        )
