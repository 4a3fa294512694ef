"""Limits of API keys, as clients of a gateway meet them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fake_backend import FakeBackend
from gateway_harness import CHAT, Running, failures, fake_replica, gateway
from openai import AsyncOpenAI
from test_gateway_relay import error_of
from test_rate_limits import Clock

from deployments.api_keys import ApiKey, KeyRing
from deployments.rate_limits import RateLimiter, RateLimits
from deployments.watched_keys import CHECK_INTERVAL_S, KeySource, WatchedKeys

PATH = "/v1/chat/completions"
KEY = {"Authorization": "Bearer limited"}
FREE = {"Authorization": "Bearer free"}


@asynccontextmanager
async def limited(
    limits: RateLimits, backend: FakeBackend | None = None, clock: Clock | None = None
) -> AsyncIterator[Running]:
    keys = KeyRing([ApiKey.of("limited", "limited", limits=limits), ApiKey.of("free", "free")])
    limiter = RateLimiter(clock=clock or Clock())
    async with fake_replica(backend) as one, gateway([one], keys=keys, limiter=limiter) as running:
        yield running


async def ask(running: Running, headers: dict[str, str] = KEY, **fields: object) -> httpx.Response:
    return await running.client.post(PATH, json={**CHAT, **fields}, headers=headers)


def remaining(response: httpx.Response, what: str) -> int:
    return int(response.headers[f"x-ratelimit-remaining-{what}"])


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
        assert failures(running) == {("", "rate_limit_error"): 1}
        # Neither other keys nor other routes are concerned.
        free = await ask(running, FREE)
        assert free.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in free.headers)
        assert (await running.client.get("/v1/models", headers=KEY)).status_code == 200
        clock.now += 30
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
        assert "1 requests at a time" in error_of(refused)["message"]
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


async def test_failures_give_places_and_tokens_back() -> None:
    limits = RateLimits(tokens_per_minute=1000, max_concurrent_requests=1)
    async with limited(limits) as running:
        too_long = {"messages": [{"role": "user", "content": "x " * 5000}]}
        for fields in ({"temperature": 9}, {"model": "nope"}, too_long):
            failed = await ask(running, **fields)
            assert failed.status_code in (400, 404)
        assert remaining(await ask(running, max_tokens=1), "tokens") == 1000 - 8


async def test_tokens_are_those_that_were_used() -> None:
    async with limited(RateLimits(tokens_per_minute=1000)) as running:
        # Reckoned with are an estimated prompt of 7 tokens and all that may be generated.
        first = await ask(running, max_tokens=100)
        assert remaining(first, "tokens") == 1000 - 107
        # Used were 3 and 3.
        assert first.json()["usage"]["total_tokens"] == 6
        second = await ask(running, max_tokens=100, stream=True)
        assert remaining(second, "tokens") == 994 - 107
        # A stream without usage counts by its 3 deltas, with it exactly.
        third = await ask(
            running, max_tokens=100, stream=True, stream_options={"include_usage": True}
        )
        assert remaining(third, "tokens") == 984 - 107
        too_many = await ask(running, max_tokens=990)
        assert too_many.status_code == 429
        assert "1000 tokens a minute" in error_of(too_many)["message"]
        assert remaining(too_many, "tokens") == 978
        last = await ask(running, max_tokens=900)
        assert last.status_code == 200


async def test_a_replicas_own_429_costs_no_tokens() -> None:
    backend = FakeBackend()
    keys = KeyRing([ApiKey.of("one", "limited", limits=RateLimits(tokens_per_minute=1000))])
    limiter = RateLimiter(clock=Clock())
    async with (
        fake_replica(backend, options={"faults": {"two": "queue_full"}}) as one,
        gateway([one], keys=keys, limiter=limiter) as running,
    ):
        for _ in range(5):
            full = await ask(running, max_tokens=600)
            assert error_of(full)["code"] == "queue_full"


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
    path, clock = tmp_path / "keys.yaml", Clock()

    def write(entries: str) -> None:
        path.write_text(f"keys:\n{entries}")
        path.chmod(0o600)
        clock.now += CHECK_INTERVAL_S

    write("  - {name: a, key: one, requests_per_minute: 1}\n")
    keys = WatchedKeys(KeySource((), (), path), path, clock=clock)
    one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
    async with (
        fake_replica() as replica,
        gateway([replica], keys=keys, limiter=RateLimiter(clock=lambda: 0.0)) as running,
    ):
        answers = [await ask(running, one), await ask(running, one), await ask(running, two)]
        assert [answer.status_code for answer in answers] == [200, 429, 401]
        write("  - {name: a, key: [one, two], requests_per_minute: 3}\n")
        answers = [await ask(running, key) for key in (one, two, one)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        write("  - {name: b, key: two}\n")
        answers = [await ask(running, key) for key in (one, two)]
        assert [answer.status_code for answer in answers] == [401, 200]
