"""A gateway whose key `limited` has limits, and `free` has none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx

from deployments.fleet.directory import Replica
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimiter, RateLimits
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    fake_replica,
    gateway,
)

PATH = "/v1/chat/completions"
MOST_OF_CHAT = 2 + 13 + 512 + 16
"""Tokens that its prompt may have for all that a gateway knows: bytes, and a template's own."""
LIKELY_OF_CHAT = (2 + 13) // 4 + 1
KEY = {"Authorization": "Bearer limited"}
FREE = {"Authorization": "Bearer free"}


@asynccontextmanager
async def limited(
    limits: RateLimits, backend: FakeBackend | None = None, clock: Clock | None = None
) -> AsyncIterator[Running]:
    async with limited_to(fake_replica(backend), limits, clock) as running:
        yield running


@asynccontextmanager
async def limited_to(
    replica: AbstractAsyncContextManager[Replica], limits: RateLimits, clock: Clock | None = None
) -> AsyncIterator[Running]:
    keys = KeyRing([ApiKey.of("limited", "limited", limits=limits), ApiKey.of("free", "free")])
    limiter = RateLimiter(clock=clock or Clock())
    async with replica as one, gateway([one], keys=keys, limiter=limiter) as running:
        yield running


async def ask(running: Running, headers: dict[str, str] = KEY, **fields: object) -> httpx.Response:
    return await running.client.post(PATH, json={**CHAT, **fields}, headers=headers)


async def ask_for(running: Running, words: str, **fields: object) -> httpx.Response:
    return await ask(running, messages=[{"role": "user", "content": words}], **fields)


async def ask_when_free(running: Running) -> httpx.Response:
    """For a key of one request at a time, once the gateway has seen the end of the last."""
    while (answer := await ask(running, max_tokens=1)).status_code == 429:
        assert "at a time" in str(error_of(answer)["message"])
    return answer


def remaining(response: httpx.Response, what: str) -> int:
    return int(response.headers[f"x-ratelimit-remaining-{what}"])
