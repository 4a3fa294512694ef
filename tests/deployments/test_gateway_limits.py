"""Limits of API keys, as clients of a gateway meet them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from deployments.fleet.directory import Replica
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimiter, RateLimits
from deployments.gateway.access.watched_keys import KeySource, WatchedKeys
from deployments.http.errors import ApiError
from deployments.http.sse import KEEP_ALIVE
from deployments.wire.failure import BelatedError
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    ScriptedReplica,
    failures,
    fake_replica,
    gateway,
    scripted,
)

PATH = "/v1/chat/completions"
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
        third = await ask(
            running, max_tokens=100, stream=True, stream_options={"include_usage": True}
        )
        assert remaining(third, "tokens") == 988 - 107
        too_many = await ask(running, max_tokens=990)
        assert too_many.status_code == 429
        assert "1000 tokens a minute" in error_of(too_many)["message"]
        assert remaining(too_many, "tokens") == 982
        last = await ask(running, max_tokens=900)
        assert last.status_code == 200


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
async def test_a_stream_costs_its_tokens_whatever_it_shows_of_them(
    options: dict[str, object],
) -> None:
    words = " ".join("abcdefghijklmnopqrst")
    async with limited(RateLimits(tokens_per_minute=1000)) as running:
        # All the text is withheld until it can't become the stop string any more.
        told = await ask_for(running, words, stream=True, stop=[f"{words}X"], **options)
        assert told.text.count('"content":"') == 2
        assert remaining(await ask(running, max_tokens=1), "tokens") == 1000 - 40 - 8


@pytest.mark.parametrize("stream", [True, False])
async def test_prompts_cost_their_tokens_however_long_their_text_is(stream: bool) -> None:
    async with limited(RateLimits(tokens_per_minute=1000)) as running:
        fields = {"model": "demo", "prompt": ["a b c d e f g h", "a " * 20], "n": 2}
        answer = await running.client.post(
            "/v1/completions", json={**fields, "max_tokens": 1, "stream": stream}, headers=KEY
        )
        assert answer.status_code == 200
        assert remaining(await ask(running, max_tokens=1), "tokens") == 1000 - 28 - 4 - 8


@pytest.mark.parametrize("stream", [True, False])
async def test_reckoned_with_is_no_more_than_the_context(stream: bool) -> None:
    async with limited(RateLimits(tokens_per_minute=20_000)) as running:
        for num_choices in (1, 2):
            answer = await ask(running, max_tokens=2**31 - 1, n=num_choices, stream=stream)
            used = 6 * (num_choices - 1)
            assert remaining(answer, "tokens") == 20_000 - used - num_choices * 4096


async def test_routing_reckons_with_no_more_than_the_context() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one]) as running:
        backend.hold()
        asking = asyncio.create_task(ask(running, max_tokens=2**31 - 1, n=2))
        await backend.held.reaches(1)
        (state,) = running.table.serving("demo")
        assert state.load.tokens == 2 * 4096
        backend.release()
        assert (await asking).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_before_the_first_token_pays_for_the_prompt(stream: bool) -> None:
    backend = FakeBackend()
    limits = RateLimits(tokens_per_minute=1000, max_concurrent_requests=1)
    async with limited(limits, backend) as running:
        backend.hold()
        asking = asyncio.create_task(ask(running, stream=stream, max_tokens=1_000_000))
        await backend.held.reaches(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await backend.live.reaches(0)
        backend.release()
        assert remaining(await ask_when_free(running), "tokens") == 1000 - 7 - 8


async def test_who_leaves_a_stream_pays_for_what_there_was_of_it() -> None:
    backend = FakeBackend()
    limits = RateLimits(tokens_per_minute=1000, max_concurrent_requests=1)
    async with limited(limits, backend) as running:
        backend.hold(after_tokens=2)
        body = {**CHAT, "stream": True, "max_tokens": 1_000_000}
        async with running.client.stream("POST", PATH, json=body, headers=KEY) as stream:
            lines = stream.aiter_lines()
            while '"content":" two"' not in await anext(lines):
                pass
        backend.release()
        assert remaining(await ask_when_free(running), "tokens") == 1000 - 3 - 2 - 8


async def test_a_long_stream_costs_what_there_is_of_it_while_it_lasts() -> None:
    backend = FakeBackend()
    async with limited(RateLimits(tokens_per_minute=300), backend) as running:
        backend.hold(after_tokens=290)
        # Without a maximum it is reckoned with 256 tokens.
        body = {**CHAT, "stream": True, "ignore_eos": True}
        async with running.client.stream("POST", PATH, json=body, headers=KEY) as stream:
            num_told, lines = 0, stream.aiter_lines()
            while num_told < 290:
                num_told += '"delta":{"content":' in await anext(lines)
            refused = await ask(running, max_tokens=1)
            assert (refused.status_code, remaining(refused, "tokens")) == (429, 7)
        backend.release()


async def test_an_answer_that_fails_costs_what_there_was_of_it() -> None:
    error = ApiError(500, "m", type="server_error")
    event = BelatedError.render(error)
    tokens = [KEEP_ALIVE + b":~0=0/7 0:1,2\n\n", KEEP_ALIVE + b":~0:3\n\n"]
    for chunks, used in (([KEEP_ALIVE + b":~\n\n", event], 0), ([*tokens, event], 7 + 3)):
        replica = ScriptedReplica(chunks=chunks)
        async with limited_to(scripted(replica), RateLimits(tokens_per_minute=1000)) as running:
            failed = await ask(running, max_tokens=100)
            assert (failed.status_code, failed.json()["error"]["message"]) == (500, "m")
            replica.status, replica.chunks = 400, [error.json()]
            assert remaining(await ask(running, max_tokens=1), "tokens") == 1000 - used - 8


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
