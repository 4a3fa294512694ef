"""What the gateway's routes work with."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import Keys
from deployments.gateway.access.rate_limits import RateLimiter
from deployments.gateway.body_budget import BodyBudget
from deployments.gateway.relay.parts import RelayParts
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.watch.watch import FleetWatch
from deployments.observe.tracing import NoOpTracer, Tracer


@dataclass(frozen=True, kw_only=True)
class GatewayParts(RelayParts):
    keys: Keys
    gateways: Callable[[], Awaitable[Sequence[GatewayAddress]]]
    """Every gateway of the application."""
    limiter: RateLimiter = field(default_factory=RateLimiter)
    session_header: Sequence[str] = ()
    """Requests that have the same value in it belong on one replica."""
    resumption_key: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)
    """Signs the ids of resumable streams. Gateways with the same one go on with each other's."""
    responses: SharedStore | None = None
    """Where responses are kept; None: nowhere."""
    watch: FleetWatch | None = None
    """What engines do now; None: nobody is told."""
    tracer: Tracer = field(default_factory=NoOpTracer)

    @cached_property
    def bodies(self) -> BodyBudget:
        return BodyBudget(self.settings.max_total_body_bytes)
