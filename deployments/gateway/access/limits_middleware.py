"""Rate-limit middleware: a generation request has a lease for as long as its response lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.gateway.access.api_keys import SCOPE_KEY, ApiKey
from deployments.gateway.access.error_shapes import shaped_response
from deployments.gateway.access.rate_limits import NO_LIMITS, Lease, Meter, RateLimiter
from deployments.gateway.access.reservation import Demand, Reservation
from deployments.http.errors import ApiError
from deployments.http.response_events import at_start
from deployments.protocol import GENERATION_PATHS, GenerationForm
from deployments.protocol.pooling import POOLING_PATHS, PoolingForm
from deployments.protocol.token_paths import TOKEN_PATHS

LEASE_KEY = "pomona.lease"
LIMITED_PATHS = frozenset({*GENERATION_PATHS, *POOLING_PATHS, *TOKEN_PATHS})


class LimitsMiddleware:
    """Refuses what a key's limits don't allow, and tells OpenAI's ``x-ratelimit-*`` of the rest.

    Belongs below ``AuthenticationMiddleware``, which finds the key.
    """

    def __init__(
        self, app: ASGIApp, *, limiter: RateLimiter, on_refused: Callable[[Scope, ApiError], None]
    ) -> None:
        self.app = app
        self._limiter = limiter
        self._ending: set[asyncio.Task[None]] = set()
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: ApiKey | None = scope.get(SCOPE_KEY)
        if key is None or key.limits == NO_LIMITS or scope["path"] not in LIMITED_PATHS:
            await self.app(scope, receive, send)
            return
        try:
            lease = self._limiter.enter(key.name, key.limits)
        except ApiError as refusal:
            self._on_refused(scope, refusal)
            await shaped_response(refusal, scope)(scope, receive, send)
            return

        async def add_headers(start: Message) -> None:
            MutableHeaders(scope=start).update(lease.headers())

        at_start(scope, add_headers)
        scope[LEASE_KEY] = lease
        try:
            await self.app(scope, receive, send)
        finally:
            # Whoever cancels this does not wait for what a replica has to say.
            ending = asyncio.create_task(lease.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


def reserve(
    scope: Scope,
    parsed: GenerationForm | PoolingForm,
    *,
    max_tokens: int | None,
    max_model_len: int,
) -> Reservation | None:
    """What a request may take at most; None: nobody counts. ``max_tokens``: of an answer that got
    its bound when it began. Raises ``ApiError`` 429."""
    lease: Lease | None = scope.get(LEASE_KEY)
    if lease is None:
        return None
    demand = Demand(
        tuple(size.within(max_model_len) for size in parsed.prompt_sizes()),
        parsed.n,
        max_tokens or parsed.max_new_tokens,
        max_model_len,
        generates=not isinstance(parsed, PoolingForm),
    )
    return lease.reserve(demand)


def meter(scope: Scope, meter: Meter) -> None:
    """From now on ``meter`` tells what a request takes."""
    lease: Lease | None = scope.get(LEASE_KEY)
    if lease is not None:
        lease.meter = meter
