"""Rate limits of an API key at one gateway: requests, tokens, and how many sequences at a time.

A gateway counts for itself. With ``share`` each of ``n`` gateways gets an ``n``-th of the limits,
so that together they enforce the whole behind a load balancer that spreads requests evenly. Of
sequences at a time the part is rounded up: a gateway without any would refuse whoever is sent
there. A request within the key's limit that is more than a gateway's part of it runs there when
nothing else has used any of that, on credit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from deployments.gateway.access.reservation import Demand, Reservation
from deployments.gateway.access.token_bucket import TokenBucket
from deployments.http.errors import ApiError

SLOT_RETRY_AFTER_S = 1
"""Nobody knows when a running request ends."""


@dataclass(frozen=True)
class RateLimits:
    """None: unlimited."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Of prompts and answers together."""
    max_concurrent_requests: int | None = None
    """Each prompt of a request counts ``n`` times; streams count until they end."""

    def share(self, num_gateways: int) -> RateLimits:
        """The part that one of ``num_gateways`` enforces; at least one sequence at a time."""
        requests, tokens, slots = (
            self.requests_per_minute,
            self.tokens_per_minute,
            self.max_concurrent_requests,
        )
        return RateLimits(
            None if requests is None else requests / num_gateways,
            None if tokens is None else tokens / num_gateways,
            None if slots is None else math.ceil(slots / num_gateways),
        )


NO_LIMITS = RateLimits()


class KeyUsage:
    """What one holder of keys has used lately, and what it uses now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.limits = NO_LIMITS
        """Those of all gateways together: what the holder knows of."""
        self.share = NO_LIMITS
        """Those that hold here."""
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.running: set[Lease] = set()

    def apply(self, limits: RateLimits, share: RateLimits) -> None:
        """Limits that have changed hold from now on, for what has been used already too."""
        self.limits = limits
        if self.share != share:
            self.share = share
            self.requests = self._bucket(self.requests, share.requests_per_minute)
            self.tokens = self._bucket(self.tokens, share.tokens_per_minute)

    def _bucket(self, bucket: TokenBucket | None, per_minute: float | None) -> TokenBucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return TokenBucket(per_minute, self._clock)
        bucket.resize(per_minute)
        return bucket

    @property
    def num_sequences(self) -> int:
        return sum(lease.num_sequences for lease in self.running)

    def catch_up(self) -> None:
        """Have what running requests can't need any more."""
        for lease in self.running:
            lease.catch_up()

    def headers(self) -> dict[str, str]:
        """OpenAI's ``x-ratelimit-*``."""
        self.catch_up()
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(math.floor(bucket.capacity))
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level)))
                headers[f"x-ratelimit-reset-{name}"] = duration(bucket.full_in_s())
        return headers


class Meter(Protocol):
    """What a request takes."""

    def at_most(self) -> float:
        """How many tokens it will have used by its end."""
        ...

    async def used(self) -> float:
        """How many it has used, once it has ended for its client."""
        ...


class Lease:
    """One request's part of the usage. ``end`` must follow, however the request ends."""

    def __init__(self, usage: KeyUsage) -> None:
        self._usage = usage
        self._reserved = 0.0
        self.num_sequences = 1
        self.meter: Meter | None = None
        """None: nobody works on the request yet."""
        usage.running.add(self)

    def headers(self) -> dict[str, str]:
        return self._usage.headers()

    def reserve(self, demand: Demand) -> Reservation | None:
        """Before the request runs; None: nobody counts its tokens. Raises ``ApiError`` 429, and
        then it has taken none."""
        self._take_slots(demand.num_at_once)
        limit, bucket = self._usage.limits.tokens_per_minute, self._usage.tokens
        if limit is None or bucket is None:
            return None
        self._usage.catch_up()
        whole = max(1, math.floor(limit))
        if (least := demand.least(whole)) > whole:
            raise too_large(f"{limit:.12g} tokens a minute", f"{least} (prompt and answer)")
        if wait_s := bucket.wait_s(least):
            raise too_many(f"The API key's limit is {limit:.12g} tokens a minute", wait_s)
        reservation = demand.fit(max(least, math.floor(bucket.level)), whole)
        self._pay(reservation.tokens)
        return reservation

    def catch_up(self) -> None:
        if self.meter is not None:
            self._pay(self.meter.at_most())

    async def end(self) -> None:
        """The request has ended for its client; its place and what it reserved are kept until it
        is known what it has used."""
        used = self._reserved
        try:
            used = 0.0 if self.meter is None else await self.meter.used()
        finally:
            self._usage.running.remove(self)
            self._pay(used)

    def _take_slots(self, num_sequences: int) -> None:
        limit = self._usage.limits.max_concurrent_requests
        share = self._usage.share.max_concurrent_requests
        if limit is not None and num_sequences > limit:
            raise too_large(f"{limit} sequences at a time", f"{num_sequences} (prompts times n)")
        others = self._usage.num_sequences - self.num_sequences
        if limit is not None and share is not None and others and others + num_sequences > share:
            raise too_many(
                f"The API key's limit is {limit} sequences at a time", SLOT_RETRY_AFTER_S
            )
        self.num_sequences = num_sequences

    def _pay(self, tokens: float) -> None:
        """``tokens`` in all."""
        if self._usage.tokens is not None:
            self._usage.tokens.give_back(self._reserved - tokens)
        self._reserved = tokens


class RateLimiter:
    """The usage of everybody with limits, of which each of ``num_gateways`` enforces a part.
    ``clock`` is in seconds and never goes back."""

    def __init__(
        self,
        *,
        num_gateways: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_gateways = num_gateways
        self._clock = clock
        self._usages: dict[str, KeyUsage] = {}

    def enter(self, name: str, limits: RateLimits) -> Lease:
        """Admit a request of ``name``. Raises ``ApiError`` 429."""
        usage = self._usages.setdefault(name, KeyUsage(self._clock))
        usage.apply(limits, limits.share(self._num_gateways()))
        slots = usage.share.max_concurrent_requests
        if slots is not None and usage.num_sequences >= slots:
            limit = f"{limits.max_concurrent_requests} sequences at a time"
            raise too_many(f"The API key's limit is {limit}", SLOT_RETRY_AFTER_S, usage)
        if usage.requests is not None:
            if wait_s := usage.requests.wait_s(1):
                limit = f"{limits.requests_per_minute:.12g} requests a minute"
                raise too_many(f"The API key's limit is {limit}", wait_s, usage)
            usage.requests.take(1)
        return Lease(usage)


def too_many(message: str, wait_s: float, usage: KeyUsage | None = None) -> ApiError:
    """429, with ``Retry-After`` in whole seconds."""
    retry_after = max(1, math.ceil(wait_s))
    return ApiError(
        429,
        f"{message}. Try again in {retry_after} s.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_after), **(usage.headers() if usage else {})},
    )


def too_large(limit: str, requested: str) -> ApiError:
    """429 for what no waiting helps, which the openai package's client must not send again."""
    return ApiError(
        429,
        f"Request too large: the API key's limit is {limit}, requested {requested}.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"X-Should-Retry": "false"},
    )


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``20ms``, ``1.5s``, ``6m0s``, ``1h0m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{round(rest, 3):g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
