"""Limits of tokens, as clients of a gateway meet them: what is refused, reserved and paid for."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from openai import AsyncOpenAI

from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimiter, RateLimits
from deployments.http.errors import ApiError
from deployments.http.sse import KEEP_ALIVE
from deployments.protocol.common import MOST_NEW_TOKENS_ESTIMATE
from deployments.wire.failure import BelatedError
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    ScriptedReplica,
    fake_replica,
    gateway,
    scripted,
)
from tests.support.deployments.limited_gateway import (
    FREE,
    KEY,
    LIKELY_OF_CHAT,
    MOST_OF_CHAT,
    PATH,
    ask,
    ask_for,
    ask_when_free,
    limited,
    limited_to,
    remaining,
)


async def test_failures_give_places_back_and_all_but_what_was_read() -> None:
    limits = RateLimits(tokens_per_minute=20_000, max_concurrent_requests=1)
    async with limited(limits) as running:
        too_long = {"messages": [{"role": "user", "content": "x " * 5000}]}
        for fields in ({"temperature": 9}, {"model": "nope"}, too_long):
            failed = await ask(running, **fields)
            assert failed.status_code in (400, 404)
        # A replica has read, and maybe tokenized, the last one.
        likely = (2 + 2 * 5000) // 4 + 1
        assert remaining(await ask(running, max_tokens=1), "tokens") == 20_000 - likely - 4


async def test_tokens_are_those_that_were_used() -> None:
    async with limited(RateLimits(tokens_per_minute=1000)) as running:
        first = await ask(running, max_tokens=100)
        assert first.json()["usage"]["total_tokens"] == 6
        assert remaining(first, "tokens") == 1000 - 6
        # A stream tells where it begins: with what it may take reserved.
        second = await ask(running, max_tokens=100, stream=True)
        assert remaining(second, "tokens") == 994 - MOST_OF_CHAT - 100
        third = await ask(
            running, max_tokens=100, stream=True, stream_options={"include_usage": True}
        )
        assert remaining(third, "tokens") == 988 - MOST_OF_CHAT - 100
        too_many = await ask(running, max_tokens=990)
        assert too_many.status_code == 429
        assert "1000 tokens a minute" in error_of(too_many)["message"]
        assert remaining(too_many, "tokens") == 982
        last = await ask(running, max_tokens=900)
        assert last.status_code == 200


async def test_what_exceeds_the_limit_is_refused_and_costs_nothing() -> None:
    backend = FakeBackend()
    limits = RateLimits(tokens_per_minute=1000, max_concurrent_requests=40)
    async with limited(limits, backend) as running:
        body = {"model": "demo", "prompt": ["a b"] * 2, "n": 16, "max_tokens": 2000}
        refused = await running.client.post("/v1/completions", json=body, headers=KEY)
        assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
        assert "retry-after" not in refused.headers
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert error_of(refused)["message"] == (
            "Request too large: the API key's limit is 1000 tokens a minute, "
            "requested 64002 (prompt and answer)."
        )
        body = {**body, "n": 15, "prompt": ["a b"] * 4, "max_tokens": 1}
        refused = await running.client.post("/v1/completions", json=body, headers=KEY)
        assert error_of(refused)["message"] == (
            "Request too large: the API key's limit is 40 sequences at a time, "
            "requested 60 (prompts times n)."
        )
        assert not backend.requests
        assert remaining(refused, "tokens") == 1000


async def test_an_answer_without_a_maximum_ends_where_its_keys_tokens_do() -> None:
    backend = FakeBackend()
    async with limited(RateLimits(tokens_per_minute=2000), backend) as running:
        answer = await ask(running, ignore_eos=True)
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        half = (2000 - MOST_OF_CHAT) // 2
        assert answer.json()["usage"]["completion_tokens"] == half
        # Nobody bounds those without a limit.
        await ask(running, FREE)
        assert backend.requests[1].sampling.max_tokens is None


async def test_a_prompt_of_more_tokens_than_are_left_is_refused_by_who_has_counted_them() -> None:
    async with limited(RateLimits(tokens_per_minute=100)) as running:
        body = {"model": "demo", "prompt": "a " * 150, "max_tokens": 10}
        refused = await running.client.post("/v1/completions", json=body, headers=KEY)
        assert refused.status_code == 429
        assert error_of(refused)["message"] == (
            "Request too large: the API key's limit leaves 90 tokens for the prompt now, "
            "which has 150."
        )
        assert remaining(refused, "tokens") == 100
        body = {**body, "prompt": "a" * 280}
        answer = await running.client.post("/v1/completions", json=body, headers=KEY)
        assert answer.status_code == 200


async def test_openais_client_does_not_repeat_what_is_too_large() -> None:
    limits = RateLimits(tokens_per_minute=1000, requests_per_minute=60)
    async with limited(limits) as running:
        client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="limited", max_retries=2)
        async with client:
            with pytest.raises(Exception, match="Request too large") as error:
                await client.chat.completions.create(**CHAT, max_tokens=2000)  # type: ignore[call-overload]
        assert type(error.value).__name__ == "RateLimitError"
        assert remaining(await ask(running, max_tokens=1), "requests") == 60 - 2


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
async def test_a_stream_costs_its_tokens_whatever_it_shows_of_them(
    options: dict[str, object],
) -> None:
    words = " ".join("abcdefghijklmnopqrst")
    async with limited(RateLimits(tokens_per_minute=1000)) as running:
        # All the text is withheld until it can't become the stop string any more.
        told = await ask_for(running, words, stream=True, stop=[f"{words}X"], **options)
        assert told.text.count('"content":"') == 2
        assert remaining(await ask(running, max_tokens=1), "tokens") == 1000 - 40 - 4


@pytest.mark.parametrize("stream", [True, False])
async def test_prompts_cost_their_tokens_however_long_their_text_is(stream: bool) -> None:
    async with limited(RateLimits(tokens_per_minute=1000)) as running:
        fields = {"model": "demo", "prompt": ["a b c d e f g h", "a " * 20], "n": 2}
        answer = await running.client.post(
            "/v1/completions", json={**fields, "max_tokens": 1, "stream": stream}, headers=KEY
        )
        assert answer.status_code == 200
        assert remaining(await ask(running, max_tokens=1), "tokens") == 1000 - 28 - 4 - 4


async def test_reserved_is_no_more_than_the_context() -> None:
    async with limited(RateLimits(tokens_per_minute=20_000)) as running:
        for num_choices in (1, 2):
            answer = await ask(running, max_tokens=2**31 - 1, n=num_choices, stream=True)
            used = 6 * (num_choices - 1)
            assert remaining(answer, "tokens") == 20_000 - used - num_choices * 4096


@pytest.mark.parametrize(
    ("max_model_len", "tokens"), [(300, 2 * 300), (1 << 20, 7 + 2 * MOST_NEW_TOKENS_ESTIMATE)]
)
async def test_routing_reckons_with_the_context_at_most_and_with_what_is_likely(
    max_model_len: int, tokens: int
) -> None:
    backend = FakeBackend()
    async with (
        fake_replica(backend) as one,
        gateway([replace(one, max_model_len=max_model_len)]) as running,
    ):
        backend.hold()
        asking = asyncio.create_task(ask(running, max_tokens=2**31 - 1, n=2))
        await backend.held.reaches(1)
        (state,) = running.table.serving("demo")
        assert state.load.tokens == tokens
        backend.release()
        assert (await asking).status_code == 200


@pytest.mark.parametrize("num_tokens", [0, 50])
@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_pays_for_what_was_done(stream: bool, num_tokens: int) -> None:
    backend = FakeBackend()
    limits = RateLimits(tokens_per_minute=10_000, max_concurrent_requests=1)
    async with limited(limits, backend) as running:
        backend.hold(after_tokens=num_tokens)
        endless = {"max_tokens": 1_000_000, "ignore_eos": True}
        asking = asyncio.create_task(ask(running, stream=stream, **endless))
        await backend.held.reaches(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await backend.live.reaches(0)
        backend.release()
        # And for a token, which a step may have been about to make.
        assert remaining(await ask_when_free(running), "tokens") == 10_000 - 3 - num_tokens - 1 - 4


async def test_what_a_replica_does_not_say_stays_reserved() -> None:
    replica = ScriptedReplica(chunks=[KEEP_ALIVE + b":~0=0/7 0:1,2\n\n"], then="hang")
    limits = RateLimits(tokens_per_minute=1000, max_concurrent_requests=1)
    async with limited_to(scripted(replica), limits) as running:
        body = {**CHAT, "stream": True, "max_tokens": 100}
        async with running.client.stream("POST", PATH, json=body, headers=KEY) as stream:
            await anext(stream.aiter_bytes())
            # To whatever else it is asked.
            replica.status, replica.chunks, replica.then = 404, [], "end"
        assert remaining(await ask_when_free(running), "tokens") == 1000 - 7 - 100


async def test_a_stream_that_is_resumed_ends_where_it_would_have_ended() -> None:
    backend, clock = FakeBackend(), Clock()
    async with limited(RateLimits(tokens_per_minute=2000), backend, clock) as running:
        headers = {**KEY, "X-Pomona-Resumable": "1"}
        body = {**CHAT, "stream": True, "ignore_eos": True}
        whole = await running.client.post(PATH, json=body, headers=headers)
        bound = (2000 - MOST_OF_CHAT) // 2
        seen = re.findall(r"^id: (.*)$", whole.text, re.MULTILINE)[bound // 2]
        clock.time += 20
        # Now there is less left, and a new answer would end sooner.
        assert (await ask(running, ignore_eos=True, max_tokens=100)).status_code == 200
        rest = await running.client.post(
            PATH, json=body, headers={**headers, "Last-Event-ID": seen}
        )
        assert backend.requests[-1].sampling.max_tokens == bound
        assert whole.text.endswith(rest.text[-200:])


async def test_what_a_stream_reserved_is_held_while_it_runs() -> None:
    backend = FakeBackend()
    async with limited(RateLimits(tokens_per_minute=300), backend) as running:
        backend.hold(after_tokens=1)
        body = {**CHAT, "stream": True, "ignore_eos": True}
        async with running.client.stream("POST", PATH, json=body, headers=KEY) as stream:
            lines = stream.aiter_lines()
            while '"content":"one"' not in await anext(lines):
                pass
            # Less than that makes no answer.
            assert backend.requests[0].sampling.max_tokens == 256
            refused = await ask(running, max_tokens=100)
            assert (refused.status_code, remaining(refused, "tokens")) == (429, 300 - 3 - 256)
            backend.release()
            told = [line async for line in lines]
        assert '"finish_reason":"length"' in "".join(told)


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
            refused = await ask(running, max_tokens=1)
            assert remaining(refused, "tokens") == 1000 - used - LIKELY_OF_CHAT


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
