"""A key's tokens: whatever its clients do, engines do no more for it than its limit allows."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

from deployments.gateway.access.api_keys import KeyRing
from deployments.gateway.access.rate_limits import RateLimiter
from tests.support.clock import Clock
from tests.support.deployments.eager_backend import EagerBackend
from tests.support.deployments.gateway_harness import fake_replica, gateway
from tests.support.deployments.mixes import Mix
from tests.support.fuzzing import EVERY_EXAMPLE

NUM_MIXES = 200 if EVERY_EXAMPLE else 40
AT_A_TIME = 12


async def test_engines_do_no_more_for_a_key_than_its_limit_allows() -> None:
    clock, over = Clock(), Counter[str]()
    mixes = {mix.key: mix for mix in map(Mix, range(NUM_MIXES))}

    def count(key: str) -> None:
        # One step gives each sequence that runs a token.
        allowed = mixes[key].allowed(clock) + backend.num_sequences[key]
        over[key] = max(over[key], math.ceil(backend.used[key] - allowed))

    backend = EagerBackend(count)
    keys = KeyRing(mix.api_key for mix in mixes.values())
    config = {"max_num_seqs": 4096, "max_queued_requests": 4096, "max_model_len": 512}
    turns = asyncio.Semaphore(AT_A_TIME)

    async def run(mix: Mix, url: str) -> None:
        async with turns:
            await mix.run(url, clock)

    async with (
        fake_replica(backend, **config) as replica,
        gateway([replica], keys=keys, limiter=RateLimiter(clock=clock)) as running,
    ):
        await asyncio.gather(*(run(mix, running.url) for mix in mixes.values()))
        await backend.live.reaches(0)
    assert +over == {}
    # Many of them came up against it.
    used_up = [mix for key, mix in mixes.items() if backend.used[key] > 0.8 * mix.per_minute]
    assert len(used_up) > NUM_MIXES // 10
