"""Limits of API keys, as clients of a gateway meet them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from deployments.gateway.access.rate_limits import RateLimiter, RateLimits
from deployments.gateway.access.watched_keys import KeySource, WatchedKeys
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    failures,
    fake_replica,
    gateway,
)
from tests.support.deployments.limited_gateway import (
    FREE,
    KEY,
    PATH,
    ask,
    limited,
    remaining,
)


async def test_requests_past_the_rate_get_429_and_when_to_come_back() -> None:
    clock = Clock()
    async with limited(RateLimits(requests_per_minute=2), clock=clock) as running:
        first, second, third = [await ask(running) for _ in range(3)]
        assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
        assert (remaining(first, "requests"), remaining(second, "requests")) == (1, 0)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-reset-requests"] == "30s"
        assert "x-ratelimit-limit-tokens" not in first.headers
        assert third.headers["retry-after"] == "30"
        assert third.headers["x-request-id"].startswith("req-")
        assert remaining(third, "requests") == 0
        assert error_of(third)["type"] == "rate_limit_error"
        assert failures(running) == {("unknown", "rate_limit_error"): 1}
        # Neither other keys nor other routes are concerned.
        free = await ask(running, FREE)
        assert free.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in free.headers)
        assert (await running.client.get("/v1/models", headers=KEY)).status_code == 200
        clock.time += 30
        assert (await ask(running)).status_code == 200


async def test_a_request_that_is_wrong_counts_as_one() -> None:
    async with limited(RateLimits(requests_per_minute=2)) as running:
        wrong = await ask(running, temperature=9)
        assert (wrong.status_code, remaining(wrong, "requests")) == (400, 1)
        await ask(running, model="nope")
        assert (await ask(running)).status_code == 429


async def test_a_stream_keeps_its_place_until_it_ends() -> None:
    backend = FakeBackend()
    async with limited(RateLimits(max_concurrent_requests=1), backend) as running:
        backend.hold(after_tokens=1)
        request = running.client.build_request(
            "POST", PATH, json={**CHAT, "stream": True}, headers=KEY
        )
        stream = await running.client.send(request, stream=True)
        assert stream.status_code == 200
        refused = await ask(running)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "1 sequences at a time" in error_of(refused)["message"]
        backend.release()
        assert (await stream.aread()).endswith(b"data: [DONE]\n\n")
        await stream.aclose()
        assert (await ask(running)).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_gives_its_place_back(stream: bool) -> None:
    backend = FakeBackend()
    async with limited(RateLimits(max_concurrent_requests=1), backend) as running:
        backend.hold(after_tokens=1)
        asking = asyncio.create_task(ask(running, stream=stream))
        await backend.held.reaches(1)
        assert (await ask(running)).status_code == 429
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await backend.live.reaches(0)
        backend.release()
        while (await ask(running)).status_code == 429:
            await asyncio.sleep(0)


async def test_openais_client_understands_the_refusal() -> None:
    async with limited(RateLimits(requests_per_minute=1)) as running:
        client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="limited", max_retries=0)
        async with client:
            raw = await client.chat.completions.with_raw_response.create(**CHAT)  # type: ignore[call-overload]
            assert raw.headers["x-ratelimit-remaining-requests"] == "0"
            with pytest.raises(Exception, match="1 requests a minute") as error:
                await client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
    assert type(error.value).__name__ == "RateLimitError"


async def test_an_edit_of_the_file_reaches_a_running_gateway(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"

    def write(entries: str) -> None:
        path.write_text(f"keys:\n{entries}")
        path.chmod(0o600)

    write("  - {name: a, key: one, requests_per_minute: 1}\n")
    keys = WatchedKeys(KeySource((), (), path), path)
    one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
    async with (
        fake_replica() as replica,
        gateway([replica], keys=keys, limiter=RateLimiter(clock=lambda: 0.0)) as running,
    ):
        answers = [await ask(running, one), await ask(running, one), await ask(running, two)]
        assert [answer.status_code for answer in answers] == [200, 429, 401]
        write("  - {name: a, key: [one, two], requests_per_minute: 3}\n")
        keys.follow()
        answers = [await ask(running, key) for key in (one, two, one)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        write("  - {name: b, key: two}\n")
        keys.follow()
        answers = [await ask(running, key) for key in (one, two)]
        assert [answer.status_code for answer in answers] == [401, 200]
